"""What a reader makes of ``sequence_batching``; tests/e2e/repository/test_wrong_configurations.py breaks its rules."""

from pybackend.modelconfig.loader import finish_config
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import from_document
from pybackend.modelconfig.sequences import ControlKind, hidden_outputs, is_iterative, sequences_of

TENSORS = """name: "m" backend: "python" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def finished(text, tensors=TENSORS):
    return finish_config(from_document(parse_config_text(tensors + text, "config.pbtxt"), "config.pbtxt"), None, 0)


def control(name, kind, values):
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'


START = control("S", "START", "int32_false_true: [ 0, 1 ]")
STATE = 'state {{ input_name: "A" output_name: "B" data_type: TYPE_FP32 dims: [ 2 ] {} }}'


def test_defaults():
    document = finished("sequence_batching { }").document
    assert document["sequence_batching"]["max_sequence_idle_microseconds"] == 1_000_000
    config = sequences_of(document)
    assert (config.slot_count, config.oldest, config.idle_us, config.iterative) == (4, None, 1_000_000, False)
    assert sequences_of(finished("sequence_batching { }", TENSORS.replace("4", "0")).document).slot_count == 1


def test_oldest():
    config = sequences_of(
        finished(
            """sequence_batching { oldest { max_candidate_sequences: 9 max_queue_delay_microseconds: 7
            preserve_ordering: true } }"""
        ).document
    )
    assert config.slot_count == 9
    assert config.oldest.preferred_batch_sizes == {4}
    assert (config.oldest.max_batch_size, config.oldest.max_queue_delay_us, config.oldest.preserve_ordering) == (
        4,
        7,
        True,
    )
    assert sequences_of(finished("sequence_batching { oldest { } }").document).slot_count == 4


def test_controls_and_states():
    corrid = control("C", "CORRID", "data_type: TYPE_STRING")
    ready = control("R", "READY", "fp32_false_true: [ -1, 0.5 ]")
    finished_config = finished(
        f"sequence_batching {{ iterative_sequence: true {START} {corrid} {ready} "
        + STATE.format("initial_state { data_type: TYPE_FP32 dims: [ 2 ] data_file: 'x' }")
        + "}"
    )
    config = sequences_of(finished_config.document)
    assert [(each.name, each.kind, each.datatype, each.false_true) for each in config.controls] == [
        ("S", ControlKind.START, "INT32", (0, 1)),
        ("C", ControlKind.CORRELATION_ID, "BYTES", (0, 1)),
        ("R", ControlKind.READY, "FP32", (-1, 0.5)),
    ]
    (state,) = config.states
    assert (state.input_name, state.output_name, state.initial_dims, state.initial_file) == ("A", "B", (2,), "x")
    assert hidden_outputs(finished_config) == {"B"}
    assert is_iterative(finished_config)
    assert not is_iterative(finished("sequence_batching { }"))
