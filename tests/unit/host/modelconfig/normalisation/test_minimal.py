"""Configurations without what the server fills in by itself."""

from pybackend.modelconfig.normalisation import minimal_document, with_policies, with_scheduling
from pybackend.modelconfig.parser import format_config_text, parse_config_text

TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: -1 } output { name: "y" data_type: TYPE_FP32 dims: 4 }'


def loaded(text):
    document = parse_config_text(f'name: "m" {text} {TENSORS}', "x")
    return with_scheduling(with_policies(document), gpu_count=0)


def minimal(text):
    return parse_config_text(format_config_text(minimal_document(loaded(text))), "x")


def written(text):
    return parse_config_text(f"{text} {TENSORS}", "x")


def test_fields_that_the_server_fills_in_are_left_out():
    text = 'backend: "fil" max_batch_size: 8 dynamic_batching { } parameters { key: "a" value: { string_value: "b" } }'
    assert minimal(text) == written(text)
    assert minimal('backend: "python" default_model_filename: "model.py"') == written('backend: "python"')
    assert minimal('backend: "fil" runtime: "model.py"') == written('backend: "fil"')


def test_choices_of_the_author_stay():
    for text in (
        'backend: "fil" version_policy { all { } } instance_group { name: "m" count: 2 kind: KIND_CPU }',
        'backend: "fil" max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5 }',
        'backend: "fil" optimization { priority: PRIORITY_MAX }',
        'backend: "python" default_model_filename: "other.py" sequence_batching { max_sequence_idle_microseconds: 5 }',
    ):
        assert minimal(text) == written(text)


def test_what_is_left_loads_to_the_same():
    text = 'backend: "fil" max_batch_size: 8 sequence_batching { oldest { max_candidate_sequences: 4 } }'
    again = {**minimal(text), "name": "m"}
    assert with_scheduling(with_policies(again), gpu_count=0) == loaded(text)
