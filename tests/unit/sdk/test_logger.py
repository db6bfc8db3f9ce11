"""Logger: levels, the caller's place, and what it refuses."""

import os
import re
import sys

import pytest

from pybackend_sdk.logger import Logger, async_event_future_done_callback


def _line():
    return sys._getframe(1).f_lineno


def test_every_method_has_its_level_and_the_callers_place(runtime):
    first = _line() + 1
    Logger.log("default")
    Logger.log("level", Logger.WARNING)
    Logger.log(message="keywords", level=Logger.VERBOSE)
    Logger.log_info("info")
    Logger.log_warn("warn")
    Logger.log_error("error")
    Logger.log_verbose(message="verbose")
    assert [(level.name, message) for level, _, _, message in runtime.lines] == [
        ("INFO", "default"),
        ("WARNING", "level"),
        ("VERBOSE", "keywords"),
        ("INFO", "info"),
        ("WARNING", "warn"),
        ("ERROR", "error"),
        ("VERBOSE", "verbose"),
    ]
    assert [line for _, _, line, _ in runtime.lines] == list(range(first, first + 7))
    assert {os.path.basename(file) for _, file, _, _ in runtime.lines} == {os.path.basename(__file__)}


def test_the_class_kept_as_an_attribute_is_enough(runtime):
    class Model:
        logger = Logger

    Model().logger.log("text", Model.logger.ERROR)
    Model.logger.log_info("text")
    assert [level for level, *_ in runtime.lines] == [Logger.ERROR, Logger.INFO]


def test_levels():
    assert [level.name for level in Logger.LogLevel] == ["INFO", "WARNING", "ERROR", "VERBOSE"]
    assert {type(level) for level in (Logger.INFO, Logger.WARNING, Logger.ERROR, Logger.VERBOSE)} == {Logger.LogLevel}


@pytest.mark.parametrize("message", [None, 1, ["text"], ValueError("x")])
@pytest.mark.parametrize("method", ["log", "log_info", "log_warn", "log_error", "log_verbose"])
def test_messages_of_other_types(runtime, method, message):
    with pytest.raises(TypeError):
        getattr(Logger, method)(message)
    with pytest.raises(TypeError):
        getattr(Logger, method)()
    assert runtime.lines == []


@pytest.mark.parametrize("level", [0, 1, None, "INFO"])
def test_levels_of_other_types(runtime, level):
    with pytest.raises(TypeError, match="'level'"):
        Logger.log("text", level)
    assert runtime.lines == []


@pytest.mark.parametrize(("given", "logged"), [("ä", "ä"), (b"bytes", "bytes"), ("\ud800", "\\ud800"), ("", "")])
def test_messages_get_through_whatever_they_hold(runtime, given, logged):
    Logger.log_info(given)
    assert runtime.lines[0][3] == logged


@pytest.mark.parametrize(
    ("method", "letter"), [("log_info", "I"), ("log_warn", "W"), ("log_error", "E"), ("log_verbose", "I")]
)
def test_without_a_server_lines_go_to_stderr(capsys, method, letter):
    line = _line() + 1
    getattr(Logger, method)("some text")
    written = capsys.readouterr()
    assert written.out == ""
    place = rf"{os.getpid()} {re.escape(os.path.basename(__file__))}:{line}"
    assert re.fullmatch(rf"{letter}\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {place}\]  some text\n", written.err)


class FinishedFuture:
    """What the callback reads of a future."""

    def __init__(self, exception=None, cancelled=False):
        self._exception = exception
        self._cancelled = cancelled

    def cancelled(self):
        return self._cancelled

    def exception(self):
        if self._cancelled:
            raise AssertionError("a cancelled future raises here")
        return self._exception


def test_what_a_future_failed_with_is_logged(runtime):
    for future in (FinishedFuture(), FinishedFuture(cancelled=True), FinishedFuture(ValueError("xyz"))):
        async_event_future_done_callback(future)
    assert [(level, message) for level, _, _, message in runtime.lines] == [(Logger.ERROR, "ValueError: xyz")]
