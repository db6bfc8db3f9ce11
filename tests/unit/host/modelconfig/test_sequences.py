"""The rules of ``sequence_batching``, each broken once; what a reader makes of one that keeps them."""

import pytest

from pybackend.errors import ModelConfigError
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


@pytest.mark.parametrize(
    ("batching", "text"),
    [
        (control("", "START", "int32_false_true: [ 0, 1 ]"), "sequence batching control tensor must have a name for m"),
        (
            START + control("S", "END", "int32_false_true: [ 0, 1 ]"),
            "sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            """control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
            control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }""",
            "sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            START + control("T", "START", "int32_false_true: [ 0, 1 ]"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            control("S", "START", ""),
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_START for m",
        ),
        (
            control("S", "END", "int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ]"),
            "sequence batching specifies more than one from 'int32_false_true'",
        ),
        (
            control("S", "READY", "int32_false_true: [ 0 ]"),
            "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m",
        ),
        (
            control("S", "CORRID", "data_type: TYPE_FP32"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        (
            control("IN", "START", "int32_false_true: [ 0, 1 ]"),
            "sequence batching control tensor 'IN' must not be an input of the model too for m",
        ),
        ('control_input { name: "S" }', "sequence batching control tensor 'S' must specify a control for m"),
        *(
            (
                f"direct {{ minimum_slot_utilization: {value} }}",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            )
            for value in (1.5, -0.5)
        ),
        ("oldest { preferred_batch_size: [ 0 ] }", "sequence batching preferred size must be positive for m"),
        ("oldest { preferred_batch_size: [ 5 ] }", "sequence batching preferred size must be <= max batch size for m"),
        (
            "oldest { max_candidate_sequences: -1 }",
            "sequence batching max candidate sequences must not be negative for m",
        ),
        (
            'state { input_name: "A" data_type: TYPE_FP32 dims: [ 1 ] }',
            "sequence batching state must specify 'input_name' and 'output_name' for m",
        ),
        (STATE.format("") * 2, "sequence batching state 'A' has a name that another tensor has for m"),
        (
            'state { input_name: "A" output_name: "B" dims: [ 1 ] }',
            "sequence batching state 'A' must specify 'data_type' for m",
        ),
        (
            'state { input_name: "A" output_name: "B" data_type: TYPE_FP32 }',
            "sequence batching state 'A' must specify 'dims'",
        ),
        (
            STATE.format("initial_state { data_type: TYPE_INT32 dims: [ 2 ] zero_data: true }"),
            "sequence batching state 'A' has an initial_state of another 'data_type' for m",
        ),
        (
            STATE.format("initial_state { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true }"),
            "sequence batching state 'A' has an initial_state whose 'dims' do not fit for m",
        ),
        (
            STATE.format("initial_state { data_type: TYPE_FP32 dims: [ 2 ] }"),
            "sequence batching state 'A' has an initial_state without 'zero_data' or 'data_file' for m",
        ),
    ],
)
def test_a_rule_that_is_broken(batching, text, snapshot):
    with pytest.raises(ModelConfigError) as caught:
        finished(f"sequence_batching {{ {batching} }}")
    assert caught.value.message.startswith(text)
    assert caught.value.message == snapshot


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
