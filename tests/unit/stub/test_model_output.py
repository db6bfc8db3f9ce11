"""The stub's end of its output pipe, in an interpreter of its own."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from pybackend.observability.stub_output_lines import LineAssembler

ROOT = Path(__file__).resolve().parents[3]
PREPARE = f"""
import sys
sys.path[:0] = {[str(ROOT / "stub"), str(ROOT / "sdk")]!r}
import os
from pybackend_stub import model_output
model_output.open_output()
"""


def run(code, **popen):
    return subprocess.run([sys.executable, "-I", "-c", PREPARE + code], check=True, timeout=60, **popen)


def said(code):
    """What the code says into one pipe, as the host has it."""
    done = run(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = LineAssembler()
    lines.feed(done.stdout)
    while (line := lines.take()) is not None:
        yield (line.file, line.text)


def test_without_a_pipe_records_go_to_stderr_in_the_servers_format():
    """As when somebody starts a stub by hand: nothing breaks, and nothing raw appears."""
    code = """
from pybackend_stub.runtime import StubRuntime
from pybackend_sdk.logger import Logger
assert not model_output.write_record(0, "f", 1, "text")
StubRuntime("", "m_0", {}).log(Logger.WARNING, "/x/model.py", 7, "text")
import logging
logging.warning("as usual")
"""
    done = run(code, capture_output=True)
    assert done.stdout == b""
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("W")
    assert first.endswith(" model.py:7]  text")
    assert second == "WARNING:root:as usual"


def test_with_closed_streams_nothing_breaks():
    code = "assert not model_output.write_record(0, 'f', 1, 'text'); model_output.flush_output(); print('nobody')"
    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-I", "-c", PREPARE + code]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_streams_that_a_model_has_replaced_are_flushed_or_let_be():
    code = """
class Stream:
    def __init__(self): self.flushed = 0
    def flush(self): self.flushed += 1
mine = Stream()
sys.stdout, sys.stderr = mine, None
model_output.flush_output()
assert mine.flushed == 1
sys.__stdout__.close()
sys.stdout = sys.__stdout__
model_output.flush_output()
"""
    run(code, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_text_of_every_locale_and_none():
    assert list(said("print('ä \\udc80 😀')\nprint('é', file=sys.stderr)")) == [("", "ä \\udc80 😀"), ("", "é")]
    done = run("print('ä')", stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "latin-1"})
    assert done.stdout == "ä\n".encode()


def test_a_record_waits_for_a_pipe_that_is_full():
    """Even if a library has told the pipe that nobody waits for it."""
    reading, writing = os.pipe()
    code = """
os.set_blocking(1, False)
try:
    while True:
        os.write(1, b"full\\n")
except BlockingIOError:
    pass
assert model_output.write_record(0, "model.py", 7, "text")
"""
    seen = bytearray()

    def read():
        while data := os.read(reading, 65536):
            seen.extend(data)

    process = subprocess.Popen([sys.executable, "-I", "-c", PREPARE + code], stdout=writing, stderr=writing)
    os.close(writing)
    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(60) == 0
    reader.join(60)
    os.close(reading)
    assert bytes(seen).endswith(b'"text",0,"",""]\n')


def test_logging_imported_early_late_or_not_at_all():
    assert list(said("import logging\nlogging.getLogger('x').warning('early')\nprint('printed')")) == [
        ("<string>", "early"),
        ("", "printed"),
    ]
    assert list(said("assert 'logging' not in sys.modules")) == []
    assert list(said("import asyncio\nimport logging.handlers\nlogging.error('late')")) == [("<string>", "late")]


def test_records_that_cannot_be_formatted_fail_nobody():
    lines = list(said("import logging\nlogging.warning('%d', 'x')\nlogging.warning('next')"))
    assert lines[-1] == ("<string>", "next")
    assert any("TypeError" in text for _, text in lines)


def test_basic_config_as_python_has_it():
    """Asked for a format, a stream or a file, it does what it says; asked again, it does nothing."""
    code = """
import logging
logging.basicConfig(format="mine: %(message)s")
logging.warning("one")
logging.basicConfig(level=logging.INFO)
logging.warning("two")
logging.basicConfig(level=logging.INFO, force=True)
logging.info("three")
assert logging.basicConfig.__name__ == "basicConfig"
"""
    assert list(said(code)) == [("", "mine: one"), ("", "mine: two"), ("<string>", "three")]
