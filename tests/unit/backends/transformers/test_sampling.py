"""Sampling parameters of requests: checked and translated."""

import pytest

from pybackend_backends.text_requests import RequestError
from pybackend_backends.transformers.sampling import read_sampling


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"temperature": 0}, {"do_sample": False}),
        ({"temperature": "0.5"}, {"do_sample": True, "temperature": 0.5}),
        ({"top_p": 0.9, "top_k": -1}, {"do_sample": True, "top_p": 0.9, "top_k": 0}),
        ({"do_sample": "false", "top_k": 3}, {"do_sample": False, "top_k": 3}),
        ({"repetition_penalty": 1.1, "num_beams": 2}, {"repetition_penalty": 1.1, "num_beams": 2}),
    ],
)
def test_settings_become_arguments_of_generate(given, options):
    assert read_sampling(given, 16).options == options


def test_lengths_seed_and_stops_have_their_own_places():
    sampling = read_sampling({"max_tokens": "3", "min_tokens": 1, "seed": 7, "stop": "."}, 16)
    assert sampling == (3, 1, 7, ["."], {})
    assert read_sampling({}, 16).max_tokens == 16
    assert read_sampling({"max_new_tokens": 5}, 16).max_tokens == 5


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_token": 3}, "unknown sampling parameter 'max_token'; there are max_tokens,"),
        ({"max_tokens": 0}, "'max_tokens' must be a whole number from 1 on, not 0."),
        ({"max_tokens": True}, "'max_tokens' must be"),
        ({"max_tokens": 1.5}, "'max_tokens' must be"),
        ({"max_tokens": [1]}, "'max_tokens' must be"),
        ({"max_tokens": float("inf")}, "'max_tokens' must be"),
        ({"temperature": -1}, "'temperature' must be a number from 0 on, not -1."),
        ({"temperature": float("nan")}, "'temperature' must be"),
        ({"top_p": "x"}, "'top_p' must be a number from 0 to 1, not 'x'."),
        ({"do_sample": "maybe"}, "'do_sample' must be true or false, not 'maybe'."),
        ({"stop": [""]}, "'stop' must be a text or a list of texts"),
    ],
)
def test_other_settings_are_refused_by_name(given, text):
    with pytest.raises(RequestError) as refused:
        read_sampling(given, 16)
    assert text in str(refused.value)
