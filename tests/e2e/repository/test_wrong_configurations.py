"""What ``config.pbtxt`` must not say: each rule broken once, as a server that starts with such models has it."""

import pytest

from tests.support.log_lines import server_tracebacks
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

TENSORS = identity_config().replace('backend: "python"', "")
PARSE = "failed to read text proto from {path}: "


def tensor(**changes):
    given = {"name": '"IN"', "data_type": "TYPE_FP32", "dims": "[ 4 ]"} | changes
    body = " ".join(f"{key}: {value}" for key, value in given.items() if value)
    return f'backend: "python"\ninput [ {{ {body} }} ]\noutput [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]'


def more(text):
    return identity_config(extra=text)


def batching(body):
    return more(f"max_batch_size: 8 dynamic_batching {{ {body} }}")


def sequences(body):
    return more(f"max_batch_size: 4 sequence_batching {{ {body} }}")


def control(name, kind, values="int32_false_true: [ 0, 1 ]"):
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'


def state(initial=""):
    initial = initial and f"initial_state {{ {initial} }}"
    return f'state {{ input_name: "A" output_name: "B" data_type: TYPE_FP32 dims: [ 2 ] {initial} }}'


START = control("S", "START")

RULES = {
    "negative_batch": (more("max_batch_size: -1"), "'max_batch_size' must be non-negative value for {m}"),
    # tensors
    "no_name": (tensor(name=""), "model input must specify 'name' for {m}"),
    "no_type": (tensor(data_type=""), "model input 'IN' must specify 'data_type' for {m}"),
    "no_dims": (tensor(dims=""), "model input 'IN' must specify 'dims' for {m}"),
    "output_no_type": (more('output { name: "X" dims: 1 }'), "model output 'X' must specify 'data_type' for {m}"),
    "zero_dim": (tensor(dims="[ 2, 0 ]"),
        "model input 'IN' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for {m}"),
    "negative_dim": (tensor(dims="-2"),
        "model input 'IN' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for {m}"),
    "empty_reshape": (tensor(reshape="{ }"),
        "model input 'IN' cannot have empty reshape for non-batching model as scalar tensors are not supported for "
        "{m}"),
    "zero_reshape": (tensor(reshape="{ shape: [ 2, 0 ] }"),
        "model input 'IN' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for "
        "{m}"),
    "reshape_size": (tensor(reshape="{ shape: [ 3 ] }"),
        "model input 'IN' has different size for dims and reshape for {m}"),
    "empty_reshape_size": (tensor(reshape="{ }") + "max_batch_size: 2",
        "model input 'IN' has different size for dims and reshape for {m}"),
    "reshape_parts": (tensor(dims="[ 2, -1, 6 ]", reshape="{ shape: [ 6, -1, 2 ] }"),
        "model input 'IN' has different size for dims and reshape for {m}"),
    "reshape_rank": (tensor(dims="[ -1, -1 ]", reshape="{ shape: [ -1 ] }"),
        "model input 'IN' has different number of variable-size dimensions for dims and reshape for {m}"),
    "layout": (tensor(format="FORMAT_NHWC"), "model input NHWC/NCHW require 3 dims for {m}"),
    "shape_tensor": (tensor(is_shape_tensor="true"),
        "model input 'IN' must not set the TensorRT flag 'is_shape_tensor' for {m}"),
    "non_linear": (more('output { name: "X" data_type: TYPE_INT32 dims: 1 is_non_linear_format_io: true }'),
        "model output 'X' must not set the TensorRT flag 'is_non_linear_format_io' for {m}"),
    "duplicate_input": (more('input { name: "IN" data_type: TYPE_INT8 dims: 1 }'),
        "model input 'IN' is specified 2 times for {m}"),
    "duplicate_output": (more('output { name: "OUT" data_type: TYPE_INT8 dims: 1 }' * 2),
        "model output 'OUT' is specified 3 times for {m}"),
    "batch_input_type": (more('batch_input { data_type: TYPE_INT8 source_input: "IN" }'),
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for {m}"),
    "batch_input_source": (more("batch_input { data_type: TYPE_INT32 }"),
        "batch input must have exactly one 'source_input' for {m}"),
    # batching
    "zero_preferred": (batching("preferred_batch_size: [ 4, 0 ]"),
        "dynamic batching preferred size must be positive for {m}"),
    "preferred_size": (batching("preferred_batch_size: [ 4, 9 ]"),
        "dynamic batching preferred size must be <= max batch size for {m}"),
    "preferred_alone": (more("dynamic_batching { preferred_batch_size: 1 }"),
        "dynamic batching preferred size must be <= max batch size for {m}"),
    "no_default_priority": (batching("priority_levels: 3"), "default priority level must be in range [1, 3] for {m}"),
    "default_priority": (batching("priority_levels: 3 default_priority_level: 4"),
        "default priority level must be in range [1, 3] for {m}"),
    "priority_policy": (batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value "
        "{ } }"),
        "priority queue policy must have priority level in range [1, 2] for {m}"),
    "priority_policy_alone": (batching("priority_queue_policy { key: 0 value { } }"),
        "priority queue policy must have priority level in range [1, 0] for {m}"),
    "ordered_priorities": (batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
        "Only one priority level is allowed when 'preserve_ordering' is true for {m}"),
    "ordered_delay": (batching("preserve_ordering: true default_queue_policy { timeout_action: DELAY }"),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {m}"),
    "ordered_priority_delay": (batching("preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
        "priority_queue_policy { key: 1 value { timeout_action: DELAY } }"),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {m}"),
    # sequences
    "control_name": (sequences(control("", "START")), "sequence batching control tensor must have a name for {m}"),
    "control_twice": (sequences(START + control("S", "END")),
        "sequence batching control tensor 'S' is specified for multiple control kinds for {m}"),
    "control_kinds": (sequences('control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: '
        '[ 0, 1 ] } control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }'),
        "sequence batching control tensor 'S' is specified for multiple control kinds for {m}"),
    "control_tensors": (sequences(START + control("T", "START")),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for {m}"),
    "control_values": (sequences(control("S", "START", "")),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_START for {m}"),
    "control_two_values": (sequences(control("S", "END", "int32_false_true: [ 0, 1 ] bool_false_true: [ false, true "
        "]")),
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for CONTROL_SEQUENCE_END for {m}"),
    "control_entries": (sequences(control("S", "READY", "int32_false_true: [ 0 ]")),
        "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for {m}"),
    "control_type": (sequences(control("S", "CORRID", "data_type: TYPE_FP32")),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for {m}. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"),
    "control_two_kinds": (sequences(control("S", "CORRID", "data_type: TYPE_INT32 int32_false_true: [ 0, 1 ]")),
        "sequence batching must not specify 'int32_false_true' for CONTROL_SEQUENCE_CORRID for {m}"),
    "control_is_input": (sequences(control("IN", "START")),
        "sequence batching control tensor 'IN' must not be an input of the model too for {m}"),
    "control_nothing": (sequences('control_input { name: "S" }'),
        "sequence batching control tensor 'S' must specify a control for {m}"),
    "utilization": (sequences("direct { minimum_slot_utilization: 1.5 }"),
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for {m}"),
    "negative_utilization": (sequences("direct { minimum_slot_utilization: -0.5 }"),
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for {m}"),
    "zero_oldest": (sequences("oldest { preferred_batch_size: [ 0 ] }"),
        "sequence batching preferred size must be positive for {m}"),
    "oldest_size": (sequences("oldest { preferred_batch_size: [ 5 ] }"),
        "sequence batching preferred size must be <= max batch size for {m}"),
    "candidates": (sequences("oldest { max_candidate_sequences: -1 }"),
        "sequence batching max candidate sequences must not be negative for {m}"),
    "state_names": (sequences('state { input_name: "A" data_type: TYPE_FP32 dims: [ 1 ] }'),
        "sequence batching state must specify 'input_name' and 'output_name' for {m}"),
    "state_twice": (sequences(state() * 2), "sequence batching state 'A' has a name that another tensor has for {m}"),
    "state_type": (sequences('state { input_name: "A" output_name: "B" dims: [ 1 ] }'),
        "sequence batching state 'A' must specify 'data_type' for {m}"),
    "state_dims": (sequences('state { input_name: "A" output_name: "B" data_type: TYPE_FP32 }'),
        "sequence batching state 'A' must specify 'dims', each at least 1, or -1 for a variable size for {m}"),
    "state_other_type": (sequences(state("data_type: TYPE_INT32 dims: [ 2 ] zero_data: true")),
        "sequence batching state 'A' has an initial_state of another 'data_type' for {m}"),
    "state_other_dims": (sequences(state("data_type: TYPE_FP32 dims: [ 3 ] zero_data: true")),
        "sequence batching state 'A' has an initial_state whose 'dims' do not fit for {m}"),
    "state_no_data": (sequences(state("data_type: TYPE_FP32 dims: [ 2 ]")),
        "sequence batching state 'A' has an initial_state without 'zero_data' or 'data_file' for {m}"),
    # instances and metrics
    "cpu_with_gpus": (more('instance_group { name: "g" kind: KIND_CPU gpus: 0 }'),
        "instance group g of model {m} has kind KIND_CPU but specifies one or more GPUs"),
    "model_with_gpus": (more("instance_group { kind: KIND_MODEL gpus: 0 }"),
        "instance group {m}_0 of model {m} has kind KIND_MODEL but specifies one or more GPUs"),
    "negative_count": (more("instance_group { count: -2 }"), "instance group {m}_0 of model {m} has count -2"),
    "all_passive": (more("instance_group { passive: true }"), "all instance groups of model {m} are passive"),
    "metric_nothing": (more("model_metrics { metric_control { } }"), "metric control must specify 'metric_identifier'"),
    "metric_family": (more("model_metrics { metric_control { metric_identifier { } } }"),
        "metric identifier must specify non-empty 'family'"),
    "metric_options": (more('model_metrics { metric_control { metric_identifier { family: "f" } } }'),
        "metric control must specify 'histogram_options'"),
    "metric_buckets": (more('model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { '
        '} } }'),
        "histogram options must specify non-empty 'buckets'"),
    # backends
    "no_backend": ('platform: "x"' + TENSORS, "unexpected platform type 'x' for {m}"),
    "other_backend": ('backend: "tensorrt"' + TENSORS, "unable to find backend library for backend 'tensorrt'"),
    "pair": ('platform: "onnxruntime_onnx" backend: "python"' + TENSORS,
        "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python"),
    "ensemble": ('platform: "ensemble" ensemble_scheduling { }' + TENSORS, "must specify 'step' for ensemble '{m}'"),
    "agents": (more('model_repository_agents { agents { name: "decrypt" } }'),
        "model '{m}' asks for the repository agent 'decrypt'"),
    "other_name": (more('name: "another"'),
        "unexpected directory name '{m}' for model 'another', directory name must equal model name"),
    # the text itself: each line and column, and what to write, are in tests/unit/host/modelconfig/test_parser.py
    "unknown_field": (more("max_bacth_size: 4"),
        PARSE + 'line 5, column 1: Message type "inference.ModelConfig" has no'),
    "unknown_inner": (more("instance_group { cuont: 2 }"), PARSE + "line 5, column 18: Message type"),
    "negative_delay": (more("dynamic_batching { max_queue_delay_microseconds: -1 }"),
        PARSE + "line 5, column 50: Value out of range: -1"),
    "negative_idle": (more("sequence_batching { max_sequence_idle_microseconds: -1 }"),
        PARSE + "line 5, column 53: Value out of range: -1"),
    "two_schedulers": (more("dynamic_batching { } sequence_batching { }"),
        PARSE + 'line 5, column 22: Field "sequence_batching" is specified along with field "dynamic_batching"'),
    "two_strategies": (more("sequence_batching { direct { } oldest { } }"),
        PARSE + 'line 5, column 32: Field "oldest" is specified along with field "direct"'),
    "batching_ensemble": ('platform: "ensemble" dynamic_batching { } ensemble_scheduling { }' + TENSORS,
        PARSE + 'line 1, column 43: Field "ensemble_scheduling" is specified along'),
    "no_utf8": (b"backend: \xff", PARSE + "line 1, column 10: There is a byte that is not UTF-8"),
}  # fmt: skip
"""By model: its configuration, and the reference's words, with which its refusal begins."""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    repository = tmp_path_factory.mktemp("wrong")
    for name, (config, _) in RULES.items():
        write_model(repository, name, IDENTITY, None)
        (repository / name / "config.pbtxt").write_bytes(config if isinstance(config, bytes) else config.encode())
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("models are ready in")
        server.repository = repository
        yield server


@pytest.mark.spec("srv-R11")
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.spec("srv-R13")) if name == "other_name" else name for name in RULES]
)
def test_wrong_configuration(wrong, status_of, model, snapshot):
    """The first words are the reference's; the file is named; and no traceback stands in the way."""
    path = wrong.repository / model / "config.pbtxt"
    status = status_of(wrong, model)
    assert status.startswith("UNAVAILABLE: ")
    reason = status.removeprefix("UNAVAILABLE: ").split(": ", 1)[1]
    assert reason.startswith(RULES[model][1].replace("{path}", str(path)).replace("{m}", model))
    assert str(path) in reason
    assert status == snapshot


@pytest.mark.spec("srv-R13")
def test_no_name_of_a_model_whose_directory_has_another_is_served(wrong):
    assert wrong.get("/v2/models/other_name").status == 404
    assert wrong.get("/v2/models/another").status == 404


def test_no_traceback_for_any_of_them(wrong):
    assert not server_tracebacks(wrong.output)
    assert wrong.get("/v2/health/ready").status == 400
    assert wrong.get("/v2/health/live").status == 200
