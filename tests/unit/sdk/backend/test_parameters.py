"""Typed parameters of backends: what they accept, and the words for what they do not."""

import pytest

from pybackend_sdk.backend import Ignored, boolean, choice, number, read_parameters, text, whole_number
from pybackend_sdk.error import TritonModelException

KNOWN = {
    "threads": whole_number(at_least=1, at_most=64),
    "any": whole_number(),
    "threshold": number(at_least=0),
    "arena": boolean(),
    "mode": choice("Fast", "exact"),
    "note": text(),
    "gpu_mem_limit": Ignored("it concerns GPUs only"),
}


def read(prefixes=(), **parameters):
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return read_parameters({"name": "m", "backend": "b", "parameters": values}, KNOWN, prefixes)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("threads", " 8 ", 8),
        ("any", "-3", -3),
        ("threshold", "0.25", 0.25),
        ("arena", "TRUE", True),
        ("arena", "0", False),
        ("mode", "fast", "Fast"),
        ("note", "any text", "any text"),
    ],
)
def test_values_have_types(name, given, value):
    assert read(**{name: given}) == {name: value}


def test_what_is_left_out_is_missing_and_what_is_the_servers_is_left_to_it():
    assert read() == {}
    assert read(EXECUTION_ENV_PATH="/env", SANDBOX_READ="/data", RESTART_LIMIT="3") == {}


def test_the_framework_checks_names_with_its_prefix():
    assert read(["session."], **{"session.anything": "1"}) == {"session.anything": "1"}


def test_an_ignored_parameter_is_warned_of(capsys):
    assert read(gpu_mem_limit="1") == {}
    assert "model 'm': parameters gpu_mem_limit has no effect: it concerns GPUs only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("threads", "0", "must be a whole number from 1 to 64, it is '0'"),
        ("threads", "65", "must be a whole number from 1 to 64, it is '65'"),
        ("threads", "1.5", "must be a whole number from 1 to 64, it is '1.5'"),
        ("any", "9" * 400, "must be a whole number, it is '9"),
        ("threshold", "-1", "must be a number of at least 0, it is '-1'"),
        ("threshold", "nan", "must be a number of at least 0, it is 'nan'"),
        ("arena", "maybe", "must be true or false, it is 'maybe'"),
        ("mode", "slow", "must be one of Fast, exact, it is 'slow'"),
    ],
)
def test_wrong_values_are_refused(name, given, expected):
    with pytest.raises(TritonModelException) as caught:
        read(**{name: given})
    assert str(caught.value).startswith(f"model 'm': parameters {name} {expected}")


@pytest.mark.parametrize(
    ("name", "advice"),
    [("thread", "did you mean threads?"), ("Arenas", "did you mean arena?"), ("xyz", "it has threads, any, ")],
)
def test_unknown_parameters_are_refused_by_name(name, advice):
    with pytest.raises(TritonModelException) as caught:
        read(**{name: "1"})
    assert str(caught.value).startswith(f"model 'm': backend 'b' has no parameter '{name}': {advice}")
