"""The format of the server's log, and what of it is wanted."""

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from pybackend.observability.log_lines import LineFormatter
from pybackend.observability.logging import write_model_line

TALK = """
import logging, sys
from pybackend.observability.log_lines import LogSettings
from pybackend.observability.logging import LOG, wants_model_level, write_model_line
LOG.open(LogSettings({settings}), sys.stdout)
for number, level in enumerate((logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)):
    logging.getLogger("pybackend.x").log(level, "host %d", number)
    if wants_model_level(number):
        write_model_line("m_0", 4711, number, "/x/model.py", 5, "model %d" % number)
"""


def talk(settings="", **popen):
    done = subprocess.run(
        [sys.executable, "-c", TALK.format(settings=settings)],
        check=False,
        capture_output=not popen,
        text=True,
        **popen,
    )
    assert done.returncode == 0, done.stderr
    return done


def said(output):
    return [(line[0], json.loads(line.partition("] ")[2])) for line in output.splitlines()]


def test_format_of_a_line():
    record = logging.LogRecord("pybackend", logging.INFO, "/a/b.py", 5, 'a "%s"\n', ("quote",), None)
    record.created = 1732097763.123456
    assert LineFormatter().format(record) == f'I1120 10:16:03.123456 {record.process} b.py:5] "a \\"quote\\"\\n"'


SEVERAL_LINES = """
import sys
from pybackend.observability.log_lines import LogSettings
from pybackend.observability.logging import LOG, write_model_line
LOG.open(LogSettings(), sys.stdout)
text = 'ValueError: "no"\\nTraceback (most recent call last):\\n  File "model.py"\\nE0101 00:00:00.000000 1 x.py:1] forged\\x1b[2J\\n'
write_model_line("m_0", 4711, 2, "/x/model.py", 5, text)
write_model_line("m_0", 4711, 0, "/x/model.py", 6, "last")
"""


def test_a_terminal_gets_real_line_breaks_and_nothing_that_looks_like_a_record():
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", SEVERAL_LINES], check=False, stdout=theirs, stderr=theirs)
        assert done.returncode == 0
        shown = b""
        while not shown.endswith(b'"last"\r\n'):
            shown += os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    lines = shown.decode().splitlines()
    assert re.fullmatch(r'E[^\]]+ 4711 m_0/model\.py:5\] "ValueError: \\"no\\""', lines[0])
    assert lines[1:4] == [
        "    Traceback (most recent call last):",
        '      File "model.py"',
        "    E0101 00:00:00.000000 1 x.py:1] forged\\u001b[2J",
    ]
    assert len(lines) == 5


def test_a_pipe_gets_one_line_for_each_record():
    done = subprocess.run([sys.executable, "-c", SEVERAL_LINES], check=False, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line.partition("] ")[2]).splitlines()[1] == "Traceback (most recent call last):"


def test_lines_of_models_name_the_instance_and_its_process(caplog):
    with caplog.at_level(logging.DEBUG, "pybackend"):
        write_model_line("m_0", 4711, 1, "/x/model.py", 5, "text with % signs")
        write_model_line("m_0", 4711, 77, "output", 6, "text")
    lines = [LineFormatter().format(record) for record in caplog.records]
    assert re.fullmatch(r'W\d{4} [0-9:.]{15} 4711 m_0/model\.py:5\] "text with % signs"', lines[0])
    assert re.fullmatch(r'I\d{4} [0-9:.]{15} 4711 m_0/output:6\] "text"', lines[1])


ENDS_A_LINE = "\n\r\v\f\x1b\x85\u2028\u2029\x7f\x9b\u202e"
FORGED = f'x.py:1] "fine"{ENDS_A_LINE}E1120 10:16:03.123456 1 server.py:1] "forged"'


@pytest.mark.parametrize(
    "said",
    [("m_0", FORGED, "text"), ("m_0", "x.py", FORGED), (FORGED, "x.py", "text")],
    ids=["file", "message", "instance"],
)
def test_nothing_that_a_model_says_passes_for_a_line_of_the_server(caplog, said):
    instance, file, message = said
    with caplog.at_level(logging.DEBUG, "pybackend"):
        write_model_line(instance, 4711, 1, file, 5, message)
    (line,) = [LineFormatter().format(record) for record in caplog.records]
    assert not set(ENDS_A_LINE) & set(line)
    parts = re.fullmatch(r'W\d{4} [0-9:.]{15} 4711 ([^"\]]*):5\] (".*")', line)
    assert parts, line
    assert json.loads(parts[2]) == message
    assert json.loads(f'"{parts[1]}"') == f"{instance}/{file}"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ("", "012"),
        ("verbose_level=1", "0123"),
        ("info=False", "12"),
        ("warning=False", "02"),
        ("error=False", "01"),
        ("info=False, verbose_level=2", "123"),
    ],
)
def test_levels_and_where_they_go(settings, wanted):
    done = talk(settings)
    letters = {"0": "I", "1": "W", "2": "E", "3": "I"}
    for output, mine in ((done.stdout, "03"), (done.stderr, "12")):
        assert said(output) == [
            (letters[number], f"{who} {number}") for number in mine if number in wanted for who in ("host", "model")
        ]


def test_one_file_for_both_keeps_the_order(tmp_path):
    with (tmp_path / "log").open("w") as file:
        talk(stdout=file, stderr=subprocess.STDOUT)
    assert [text for _, text in said((tmp_path / "log").read_text())] == [
        f"{who} {number}" for number in range(3) for who in ("host", "model")
    ]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "> /dev/full"])
def test_outputs_that_are_not_there(closed):
    """A server that nobody listens to serves all the same."""
    command = f"exec {sys.executable} -c '{TALK.format(settings='')}' {closed}"
    assert subprocess.run(["sh", "-c", command], check=False, capture_output=True).returncode == 0


def test_outputs_that_are_no_files(monkeypatch):
    root = logging.getLogger("pybackend")
    state = root.propagate, root.level, root.handlers[:]
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    try:
        from pybackend.observability.log_lines import LogSettings
        from pybackend.observability.logging import ServerLog

        ServerLog().open(LogSettings(), sys.stdout)
        write_model_line("m_0", 1, 0, "model.py", 5, "text")
    finally:
        root.propagate, root.level, root.handlers[:] = state
    assert said(out.getvalue()) == [("I", "text")]
