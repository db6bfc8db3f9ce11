"""TritonError, TritonModelException, and exceptions as text."""

import os
import pickle
import re

import pytest

from pybackend_sdk.error import FRAME_LIMIT, TritonError, TritonModelException, format_exception

CODES = {
    "UNKNOWN": 0,
    "INTERNAL": 1,
    "NOT_FOUND": 2,
    "INVALID_ARG": 3,
    "UNAVAILABLE": 4,
    "UNSUPPORTED": 5,
    "ALREADY_EXISTS": 6,
    "CANCELLED": 7,
}
HERE = os.path.abspath(__file__)


@pytest.mark.parametrize(("name", "number"), CODES.items())
def test_codes(name, number):
    code = getattr(TritonError, name)
    assert int(code) == number
    assert type(code) is vars(TritonError)["__ErrorCode"]
    assert TritonError("text", code).code() is code
    assert TritonError(message="text", code=code).message() == "text"


def test_internal_is_the_default():
    assert TritonError("text").code() is TritonError.INTERNAL


@pytest.mark.parametrize("arguments", [(), (None,), (1,), (ValueError("x"),), ("x", None), ("x", 1), ("x", "INTERNAL")])
def test_arguments_of_other_types(arguments):
    with pytest.raises(TypeError):
        TritonError(*arguments)


def test_an_error_is_no_exception():
    assert not issubclass(TritonError, BaseException)
    assert issubclass(TritonModelException, Exception)
    assert str(TritonModelException("text")) == "text"
    assert str(TritonError("text")) == "text"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("ä", "ä"), (b"bytes", "bytes"), ("bad \ud800 surrogate", "bad \\ud800 surrogate"), (b"\xff", "\\xff"), ("", "")],
)
def test_messages_get_through_whatever_they_hold(given, kept):
    assert TritonError(given).message() == kept


def test_exceptions_cross_to_worker_processes():
    again = pickle.loads(pickle.dumps(TritonModelException("text")))
    assert type(again) is TritonModelException
    assert str(again) == "text"


def test_native_names():
    assert str(TritonModelException) == "<class 'c_python_backend_utils.TritonModelException'>"
    assert repr(TritonError("x")).startswith("<c_python_backend_utils.TritonError object at 0x")


# --- Exceptions as text ---


def _inner(error):
    raise error


def _outer(error):
    try:
        _inner(error)
    except BaseException as caught:  # whatever it is
        return caught


def _line_of(function, offset):
    return function.__code__.co_firstlineno + offset


def test_frames_are_listed_innermost_first():
    caught = _outer(ValueError("xyz"))
    expected = (
        f"ValueError: xyz\n\nAt:\n  {HERE}({_line_of(_inner, 1)}): _inner\n  {HERE}({_line_of(_outer, 2)}): _outer\n"
    )
    assert format_exception(caught).replace(caught.__traceback__.tb_frame.f_code.co_filename, HERE) == expected


def test_hidden_frames_are_left_out(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("def execute():\n    call()\n")
    hidden = tmp_path / "ours" / "loop.py"
    names = {"call": lambda: _inner(ValueError("xyz"))}
    exec(compile(model.read_text(), str(model), "exec"), names)
    loop = {"execute": names["execute"]}
    exec(compile("def run():\n    execute()\n", str(hidden), "exec"), loop)
    try:
        loop["run"]()
    except ValueError as error:
        caught = error
    text = format_exception(caught, [str(hidden.parent) + os.sep, __file__])
    assert text == f"ValueError: xyz\n\nAt:\n  {model}(2): execute\n"
    assert str(hidden) in format_exception(caught)


def test_without_frames_only_type_and_message_are_shown():
    assert format_exception(KeyError("k")) == "KeyError: 'k'"
    assert format_exception(_outer(ValueError("x")), [os.path.dirname(__file__), HERE]) == "ValueError: x"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), TritonModelException("m"), OSError(2, "gone")])
def test_every_exception_has_a_text(error):
    assert format_exception(_outer(error)).startswith(f"{type(error).__name__}: {error}\n\nAt:\n")


def test_a_message_that_cannot_be_had_is_no_obstacle():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert format_exception(Broken()) == "Broken: <no message: its __str__ raised RuntimeError>"


def test_text_can_always_be_sent():
    assert format_exception(ValueError("\ud800")).encode() == b"ValueError: \\ud800"


def test_frames_of_an_endless_recursion_are_counted():
    def there():
        back()

    def back():
        there()

    try:
        there()
    except RecursionError as error:
        text = format_exception(error)
    head, _, at, *frames, outermost = text.splitlines()
    assert (head.startswith("RecursionError: "), at) == (True, "At:")
    assert sorted(frame.rpartition(" ")[2] for frame in frames[:-1]) == ["back"] * 3 + ["there"] * 3
    assert re.fullmatch(r"  \.\.\. \(\d{3,} more like these\)", frames[-1])
    assert outermost.endswith("test_frames_of_an_endless_recursion_are_counted")


def test_a_deep_stack_does_not_fill_the_response():
    code = (
        "".join(f"def f{number}(): f{number + 1}()\n" for number in range(FRAME_LIMIT))
        + f"def f{FRAME_LIMIT}(): 1 / 0\n"
    )
    functions = {}
    exec(code, functions)
    try:
        functions["f0"]()
    except ZeroDivisionError as error:
        lines = format_exception(error).splitlines()
    assert len(lines) == 3 + FRAME_LIMIT + 1
    assert lines[-1] == "  ... (2 more)"
