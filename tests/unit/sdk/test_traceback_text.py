"""Exceptions as the log shows them: whole chains, without the frames of the code that runs a model."""

import linecache
import os
import re

from pybackend_sdk.traceback_text import innermost_place, traceback_text

HERE = os.path.abspath(__file__)


def raised(action):
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def cause():
    raise KeyError("w")


def with_cause():
    try:
        cause()
    except KeyError as error:
        raise ValueError("no weights") from error


def in_file(name, source):
    """Raise what the source raises, as if it were a file of that name."""
    return raised(lambda: exec(compile(source, name, "exec"), {}))


def test_a_chain_comes_in_pythons_order():
    text = traceback_text(raised(with_cause))
    order = ["Traceback (most", "in cause\n", 'raise KeyError("w")', "KeyError: 'w'", "direct cause", "Traceback (most"]
    order += ["in with_cause\n", "ValueError: no weights"]
    places = [text.index(part, 0) for part in order[:5]]
    assert places == sorted(places)
    assert re.search(r"direct cause of the following exception:\n\nTraceback(?s:.*)in with_cause\n", text)
    assert text.endswith("ValueError: no weights")


def test_hidden_frames_are_left_out_of_every_exception():
    source = "def inner():\n    raise KeyError('w')\ntry:\n    inner()\nexcept KeyError as error:\n    raise ValueError from error"
    text = traceback_text(in_file("/m/model.py", source), [HERE])
    assert HERE not in text
    assert text.count('File "/m/model.py"') == 3


def test_nothing_is_said_where_no_line_can_be_shown():
    assert traceback_text(raised(cause), [HERE]) == ""
    assert traceback_text(ValueError("never raised")) == ""


def test_a_syntax_error_shows_its_line_without_any_frame():
    error = raised(lambda: compile("def f()\n    pass\n", "/m/model.py", "exec"))
    assert traceback_text(error, [HERE]).startswith('  File "/m/model.py", line 1\n')


def test_the_text_of_a_file_that_a_link_leads_to_is_not_shown(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "secret").write_text("-----BEGIN-----\n")
    link, inside = tmp_path / "m/model.py", tmp_path / "m/inside.py"
    link.symlink_to(tmp_path / "secret")
    inside.symlink_to("data")
    (tmp_path / "m/data").write_text("-----BEGIN-----\n")
    for file, shown in ((link, False), (inside, True)):
        text = traceback_text(raised(lambda file=file: compile(file.read_text(), str(file), "exec")), [HERE])
        assert f'File "{file}", line 1' in text
        assert ("-----BEGIN" in text) is shown


def test_cycles_and_endless_chains_end():
    first, second = raised(cause), raised(with_cause)
    first.__context__, second.__context__ = second, first
    assert "KeyError" in traceback_text(first)
    last = raised(cause)
    for _ in range(5000):
        following = ValueError("again")
        following.__cause__, last = last, following
    assert len(traceback_text(last)) < 70_000


def test_long_texts_lose_their_middle():
    error = raised(lambda: in_file_message("begin" + "x" * 200_000 + "end"))
    text = traceback_text(error)
    assert text.startswith("Traceback")
    assert re.search(r"\.\.\. \(\d+ characters left out\) \.\.\.", text)
    assert text.endswith("end")


def in_file_message(message):
    raise ValueError(message)


def test_exceptions_whose_own_code_fails_are_shown():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    def fail():
        raise Mute

    assert "Mute: <" in traceback_text(raised(fail))
    assert traceback_text(raised(lambda: in_file_message("\udc80"))).endswith("ValueError: \\udc80")


def test_the_innermost_place_is_the_authors():
    error = raised(with_cause)
    file, line = innermost_place(error, [])
    assert file == HERE
    assert "from error" in linecache.getline(HERE, line)
    assert innermost_place(error, [HERE]) == ("", 0)
