"""Choices are written into config.pbtxt, and what they do not change stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

from pybackend.modelconfig.parser import parse_config_json, parse_config_text
from pybackend_tools.analyzer.candidates import Candidate, Space, candidate_of, edited, override

TEXT = """\
# A comment with "quotes" and { brackets.
name: "m"  backend: "onnxruntime"
max_batch_size: 8  # not more
input [ { name: "max_batch_size: 1" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [
  { count: 1 kind: KIND_CPU }
]
parameters { key: "instance_group" value { string_value: "dynamic_batching {}" } }
instance_group { count: 2 }
version_policy: { latest { num_versions: 2 } }
"""


def config(text: str = TEXT) -> dict[str, Any]:
    return parse_config_text(text, "test")


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(4, 16, 500),
        Candidate(5, 8),
        Candidate(1, 1, 0, None, 2),
        Candidate(2, 32, 100, 8, 1),
    ],
)
def test_a_choice_survives_being_written(candidate: Candidate) -> None:
    text = edited(TEXT, config(), candidate)
    assert candidate_of(config(text)) == candidate
    assert config(text) == parse_config_json(override(config(), candidate), "test")
    assert text.startswith(TEXT[: TEXT.index("max_batch_size: 8")])
    assert 'input [ { name: "max_batch_size: 1" data_type: TYPE_FP32 dims: [ -1 ] } ]\n' in text


def test_the_present_choice_changes_nothing() -> None:
    assert edited(TEXT, config(), candidate_of(config())) == TEXT


def test_batches_can_be_taken_away() -> None:
    text = 'dynamic_batching {\n  max_queue_delay_microseconds: 5\n}\nbackend: "python"\nmax_batch_size: 4\n'
    assert edited(text, config(text), Candidate(1, 4)) == 'backend: "python"\nmax_batch_size: 4\n'


@pytest.mark.parametrize(
    ("backend", "parameter"),
    [("onnxruntime", "intra_op_thread_count"), ("pytorch", "INTRA_OP_THREAD_COUNT"), ("pytorch", "NUM_THREADS")],
)
def test_threads_can_be_left_to_the_backend(backend: str, parameter: str) -> None:
    first = f'backend: "{backend}"\n'
    text = f'{first}parameters {{ key: "{parameter}" value {{ string_value: "4" }} }}\n'
    assert candidate_of(config(text)) == Candidate(1, 0, threads=4)
    assert candidate_of(override(config(text), Candidate(1, 0))) == Candidate(1, 0)
    assert edited(text, config(text), Candidate(1, 0)) == first
    assert candidate_of(override(config(text), Candidate(1, 0, threads=2))) == Candidate(1, 0, threads=2)


def test_a_model_without_a_file_gets_one() -> None:
    complete = {**config("max_batch_size: 4"), "backend": "onnxruntime"}
    text = edited("", complete, Candidate(2, 4, 0, threads=1))
    assert candidate_of({**config(text), "max_batch_size": 4, "backend": "onnxruntime"}) == Candidate(
        2, 4, 0, threads=1
    )


@pytest.mark.parametrize(
    ("text", "batch_sizes", "threads"),
    [
        ('backend: "onnxruntime" max_batch_size: 100', [2, 4, 8, 16, 32, 64, 100], [1, 2]),
        ('backend: "python" max_batch_size: 8', [2, 4, 8, 16, 32, 64], []),
        ('backend: "python"', [0], []),
        ('backend: "python" max_batch_size: 8 sequence_batching {}', [8], []),
    ],
)
def test_only_that_varies_which_a_model_can_have(text: str, batch_sizes: list[int], threads: list[int]) -> None:
    space = Space([1, 2], [], [0], [], [1, 2]).of(config(text))
    assert (space.batch_sizes, space.threads) == (batch_sizes, threads)
    assert bool(space.delays_us) == (len(batch_sizes) > 1)
