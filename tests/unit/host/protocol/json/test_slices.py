"""Documents that are decoded in slices: whatever the parser makes of the whole, valid or not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.protocol.json import slices
from pybackend.protocol.json.slices import decode_in_steps, weights
from pybackend.protocol.steps import at_once

MOST = 1000

TEXTS = st.text(st.sampled_from('ab"\\,:[]{}\n\u00e9 '), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 10**12) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=40,
)


@pytest.fixture(autouse=True, scope="module")
def short_slices():
    """So short that a small document has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_BYTES", 16)
        yield


def decoded(text: bytes) -> Any:
    return at_once(decode_in_steps(text, MOST))


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
@example({"a": [1, 2, 3], "b": "x" * 40, "c": {"a" * 20: [[]] * 9}}, True, None)
def test_values_are_those_of_the_parser(value: Any, is_ascii: bool, indent: int | None) -> None:
    assert decoded(json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()) == value


@given(VALUES, st.integers(0, 10_000), st.sampled_from([b"", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"1"]))
def test_broken_texts_are_refused_as_by_the_parser(value: Any, place: int, inserted: bytes) -> None:
    text = json.dumps(value).encode()
    at = place % len(text)
    broken = text[:at] + inserted + text[at + 1 :]
    try:
        expected = msgspec.json.decode(broken)
    except msgspec.DecodeError:
        with pytest.raises(InferenceError, match="the body is no JSON"):
            decoded(broken)
    else:
        assert decoded(broken) == expected


@pytest.mark.parametrize("text", ["[%s]", "{%s}", "[1,%s[%s],2]", '{"a":[1,{%s}],"b":2}', "%s[%s1%s,%s2%s]%s"])
def test_spaces_between_tokens_mean_nothing(text: str) -> None:
    spaces = " \t\r\n" * 10
    assert decoded(text.replace("%s", spaces).encode()) == json.loads(text.replace("%s", ""))


@pytest.mark.parametrize("text", ["[%s,%s]", "[1,%s]", "[%s,1]", "{%s,%s}", '{"a":%s}', "[%s", "[%s}", "%s"])
def test_nothing_but_spaces_is_no_element(text: str) -> None:
    with pytest.raises(InferenceError, match="the body is no JSON"):
        decoded(text.replace("%s", " " * 40).encode())


def test_of_two_members_of_one_name_the_last_one_counts() -> None:
    assert decoded(b'{"a": [1, 2, 3, 4, 5, 6, 7], "b": "0123456789", "a": {"c": "0123456789"}}') == {
        "a": {"c": "0123456789"},
        "b": "0123456789",
    }


def test_nan_and_infinities_are_numbers() -> None:
    assert str(decoded(b"[1, NaN, 3, -Infinity, 5, 6, 7, Infinity]")) == "[1, nan, 3, -inf, 5, 6, 7, inf]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1, 2, 3, 4, 5, 6, 7, x]", "invalid character (byte 22)"),
        (b"[1, 2, 3, 4, 5, 6, 7, , 8]", "trailing comma in array (byte 22)"),
        (b"[" * 40 + b"]" * 40, "long lists within 16 others"),
        (json.dumps(dict.fromkeys(map(str, range(MOST + 1)))).encode(), "more than 1000 members"),
    ],
)
def test_errors_say_where(text: bytes, message: str) -> None:
    with pytest.raises(InferenceError) as raised:
        decoded(text)
    assert message in raised.value.message


def test_a_weight_counts_what_lies_outside_of_texts() -> None:
    text = b'{"a,:[": [1, 2, "\\"]:{", {}], "b\\\\": "0123456789012345678901234567890"}'
    *_, weight = weights(text)
    assert (weight.members, weight.containers, weight.texts) == (2, 3, 4)
    assert weight.plain_bytes == len(text) - len('"a,:[') - len('"\\"]:{') - len('"b\\\\') - len('"') - 31
