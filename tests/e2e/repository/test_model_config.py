"""config.pbtxt as operators write it: every field and form of it, and the words for everything that can be wrong."""

import json
import re

import pytest
from google.protobuf import json_format, text_format

from tests.support.log_lines import server_tracebacks
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served
from tests.support.server import serving

MODEL_CONFIG = pytest.importorskip("tritonclient.grpc.model_config_pb2").ModelConfig

EVERY_FIELD = """
name: "every_field"
backend: "python"
runtime: "model.py"
version_policy { latest { num_versions: 1 } }
max_batch_size: 8
input [
  {
    name: "IN" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, 4 ] reshape { shape: [ 3, -1, 2, 2 ] }
    allow_ragged_batch: true optional: true
  }
]
output { name: "OUT" data_type: TYPE_STRING dims: 4 reshape { shape: [ 2, 2 ] } label_filename: "labels.txt" }
batch_input { kind: BATCH_ITEM_SHAPE target_name: "B" data_type: TYPE_INT32 source_input: "IN" }
batch_output { target_name: "OUT" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN" }
optimization {
  graph { level: 1 }
  priority: PRIORITY_MAX
  cuda {
    graphs: true busy_wait_events: true output_copy_stream: true
    graph_spec {
      batch_size: 1
      input { key: "IN" value { dim: [ 1 ] } }
      graph_lower_bound { batch_size: 1 input { key: "IN" value { dim: [ 1 ] } } }
    }
  }
  execution_accelerators {
    gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } }
    cpu_execution_accelerator { name: "openvino" }
  }
  input_pinned_memory { enable: false }
  output_pinned_memory { enable: false }
  gather_kernel_buffer_threshold: 4294967295
  eager_batching: true
}
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy {
    timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true max_queue_size: 10
  }
  priority_queue_policy { key: 2 value { max_queue_size: 20 } }
}
instance_group [
  {
    name: "first" kind: KIND_CPU count: 1 host_policy: "cpu"
    rate_limiter { resources { name: "R" global: true count: 2 } priority: 2 }
    secondary_devices { kind: KIND_NVDLA device_id: 1 }
  },
  { name: "second" kind: KIND_MODEL count: 1 passive: true }
]
default_model_filename: "model.py"
cc_model_filenames { key: "7.5" value: "other.py" }
metric_tags { key: "team" value: "a" }
parameters { key: "threshold" value { string_value: "0.5" } }
parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "batchstrategy.so" } }
model_warmup {
  name: "zero" batch_size: 1 count: 2
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 3, 4, 4 ] zero_data: true } }
}
model_warmup {
  name: "random" batch_size: 1
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 3, 1, 4 ] random_data: true } }
}
model_warmup {
  name: "file" batch_size: 1
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 3, 1, 4 ] input_data_file: "f" } }
}
model_operations { op_library_filename: "lib.so" }
model_transaction_policy { decoupled: true }
response_cache { enable: false }
model_metrics {
  metric_control {
    metric_identifier { family: "nv_inference_first_response_histogram_ms" }
    histogram_options { buckets: [ 0.5, 1, 2.5 ] }
  }
}
"""
NOT_THERE = {
    # Another choice than the scheduler above, or belongs to other backends and is refused with its name.
    "ModelConfig.platform",
    "ModelConfig.sequence_batching",
    "ModelConfig.ensemble_scheduling",
    "ModelConfig.model_repository_agents",
    "ModelInput.is_shape_tensor",
    "ModelInput.is_non_linear_format_io",
    "ModelOutput.is_shape_tensor",
    "ModelOutput.is_non_linear_format_io",
    "ModelInstanceGroup.gpus",
    "ModelInstanceGroup.profile",
    # The other choices of a one-of.
    "ModelVersionPolicy.all",
    "ModelVersionPolicy.specific",
    # Only within sequence batching and what else is not there.
    "ModelDynamicBatching.preserve_ordering",
}
ONLY_DEFAULT = {
    # Written above with the one value that there is, or that is served: a message cannot tell it from none.
    "BatchOutput.kind",
    "SecondaryDevice.kind",
    "PinnedMemoryBuffer.enable",
    "ModelResponseCache.enable",
}
TEXT_FORMAT = """# a comment, and no name: the directory's counts
backend: 'python'   # single quotes
max_batch_size : 4, input [
  { name: "A" 'B' data_type: TYPE_INT64; dims: [ 2, 3 ] },  # adjacent strings are one
  { name: 'C' data_type: 9 dims: 2 dims: 3 }
]
input < name: "D" data_type: TYPE_BOOL dims: [ -1 ] >
output: [ { name: "\\x41\\102\\"\\303\\251" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 0x2 kind: KIND_CPU } ]
parameters: { key: "a", value: { string_value: "1" } }
parameters { value { string_value: "2" } key: "b" }
parameters [ { key: "c" value { string_value: "multi" " line" } } ]
version_policy: { specific { versions: [ 1 ] } }
dynamic_batching { }
"""
DESCRIBE = """
import json


class TritonPythonModel:
    def initialize(self, args):
        self.config = args["model_config"]

    def execute(self, requests):
        out = pb_utils.Tensor("OUT", np.array([self.config.encode()], dtype=object))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""

NO_RESPONSE = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""What a decoupled model may do."""


@served()
def server(repository):
    directory = write_model(repository, "every_field", NO_RESPONSE, EVERY_FIELD)
    (directory / "labels.txt").write_text("a\nb\n")
    (directory / "warmup").mkdir()
    (directory / "warmup" / "f").write_bytes(bytes(3 * 4 * 4))
    write_model(repository, "text_format", IDENTITY, TEXT_FORMAT)
    describing = """
        backend: "python"
        input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_STRING dims: 1 }
        parameters { key: "threshold" value { string_value: "0.5" } }
        parameters { key: "ünï \\"quoted\\"" value { string_value: "line\\nbreak" } }
        parameters { key: "EMPTY" value { } }
    """
    write_model(repository, "describing", DESCRIBE, describing)


def fields_of(message, found):
    """The names of all fields that are set in a message, and in those within it."""
    for field, value in message.ListFields():
        found.add(f"{message.DESCRIPTOR.name}.{field.name}")
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in value.values():
                    fields_of(each, found)
        else:
            for each in value if field.is_repeated else [value]:
                fields_of(each, found)
    return found


def all_fields(descriptor, found):
    for field in descriptor.fields:
        found.add(f"{descriptor.name}.{field.name}")
        child = field.message_type
        if child is not None and f"{descriptor.name}.{field.name}" not in NOT_THERE:
            if child.GetOptions().map_entry:
                child = child.fields_by_name["value"].message_type
            if child is not None and not any(name.startswith(f"{child.name}.") for name in found):
                all_fields(child, found)
    return found


@pytest.mark.spec("srv-R11")
def test_every_field_is_parsed_and_shown(server):
    written = text_format.Parse(EVERY_FIELD, MODEL_CONFIG())
    unset = all_fields(MODEL_CONFIG.DESCRIPTOR, set()) - fields_of(written, set())
    assert unset - NOT_THERE - ONLY_DEFAULT == set()
    shown = json_format.ParseDict(server.get("/v2/models/every_field/config").json, MODEL_CONFIG())
    # Names and kinds were all given, so nothing was left to fill in.
    assert shown == written


@pytest.mark.spec("srv-R11")
def test_what_is_accepted_without_effect_is_said(server):
    for text in ("model 'every_field': parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library",):
        assert len(re.findall(re.escape(text), server.output)) == 1, text


@pytest.mark.spec("srv-R12")
def test_text_format(server):
    config = server.get("/v2/models/text_format/config").json
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("AB", "TYPE_INT64", [2, 3]),
        ("C", "TYPE_INT64", [2, 3]),
        ("D", "TYPE_BOOL", [-1]),
    ]
    assert config["output"][0]["name"] == 'AB"é'
    assert config["parameters"] == {
        "a": {"string_value": "1"},
        "b": {"string_value": "2"},
        "c": {"string_value": "multi line"},
    }
    assert config["version_policy"] == {"specific": {"versions": [1]}}
    assert config["instance_group"][0]["count"] == 2
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]


@pytest.mark.spec("srv-R29")
def test_parameters_reach_the_model(server):
    request = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
    seen = json.loads(server.infer("describing", request).json["outputs"][0]["data"][0])
    wanted = {
        "threshold": {"string_value": "0.5"},
        'ünï "quoted"': {"string_value": "line\nbreak"},
        "EMPTY": {"string_value": ""},
    }
    assert seen["parameters"] == wanted
    assert server.get("/v2/models/describing/config").json["parameters"] == wanted


# --- what is wrong --------------------------------------------------------------------------------------------------

TENSORS = identity_config().replace('backend: "python"', "")


def tensor(**changes):
    given = {"name": '"IN"', "data_type": "TYPE_FP32", "dims": "[ 4 ]"} | changes
    body = " ".join(f"{key}: {value}" for key, value in given.items() if value)
    return f'backend: "python"\ninput [ {{ {body} }} ]\noutput [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]'


def more(text):
    return identity_config(extra=text)


PARSE = "failed to read text proto from {path}: "
WRONG = {
    "unknown_field": (more("max_bacth_size: 4"), PARSE + 'line 5, column 1: Message type "inference.ModelConfig" has no'),
    "unknown_inner": (more("instance_group { cuont: 2 }"), PARSE + "line 5, column 18: Message type"),
    "unknown_enum": (tensor(data_type="TYPE_FLOAT"), PARSE + "line 2, column"),
    "wrong_type": (more('max_batch_size: "four"'), PARSE + "line 5, column 17: Couldn't parse integer"),
    "open_brace": ('backend: "python"\ninput [ {', PARSE + "line 2, column"),
    "open_quote": ('backend: "python', PARSE + "line 1, column"),
    "given_twice": (more("max_batch_size: 1 max_batch_size: 2"), PARSE + "line 5, column"),
    "no_utf8": (b'backend: \xff', PARSE + "line 1, column 10: There is a byte that is not UTF-8; save the file as UTF-8"),
    "other_name": (more('name: "another"'), "unexpected directory name 'other_name' for model 'another', directory name"
                   " must equal model name"),
    "negative_batch": (more("max_batch_size: -1"), "'max_batch_size' must be non-negative value for negative_batch"),
    "no_name": (tensor(name=""), "model input must specify 'name' for no_name"),
    "no_type": (tensor(data_type=""), "model input 'IN' must specify 'data_type' for no_type"),
    "no_dims": (tensor(dims=""), "model input 'IN' must specify 'dims' for no_dims"),
    "zero_dim": (tensor(dims="[ 0 ]"), "model input 'IN' dimension must be integer >= 1, or -1 to indicate a "
                 "variable-size dimension for zero_dim"),
    "empty_reshape": (tensor(reshape="{ shape: [ ] }"), "model input 'IN' cannot have empty reshape for non-batching "
                      "model as scalar tensors are not supported for empty_reshape"),
    "reshape_size": (tensor(reshape="{ shape: [ 3 ] }"), "model input 'IN' has different size for dims and reshape for "
                     "reshape_size"),
    "reshape_rank": (tensor(dims="[ -1, -1 ]", reshape="{ shape: [ -1 ] }"), "model input 'IN' has different number of "
                     "variable-size dimensions for dims and reshape for reshape_rank"),
    "layout": (tensor(format="FORMAT_NHWC"), "model input NHWC/NCHW require 3 dims for layout"),
    "duplicate_input": (more('input { name: "IN" data_type: TYPE_INT8 dims: 1 }'), "model input 'IN' is specified 2 "
                        "times for duplicate_input"),
    "duplicate_output": (more('output { name: "OUT" data_type: TYPE_INT8 dims: 1 }'), "model output 'OUT' is specified "
                         "2 times for duplicate_output"),
    "batch_input_type": (more('batch_input { data_type: TYPE_INT8 source_input: "IN" }'), "batch input data type must be "
                         "TYPE_INT32 or TYPE_FP32 for batch_input_type"),
    "preferred_size": (more("max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }"), "dynamic batching "
                       "preferred size must be <= max batch size for preferred_size"),
    "negative_delay": (more("dynamic_batching { max_queue_delay_microseconds: -1 }"), "failed to read text proto "
                       "from {path}: line 5, column 50: Value out of range: -1"),
    "negative_idle": (more("sequence_batching { max_sequence_idle_microseconds: -1 }"), "failed to read text proto "
                      "from {path}: line 5, column 53: Value out of range: -1"),
    "two_schedulers": (more("dynamic_batching { } sequence_batching { }"), 'failed to read text proto from {path}: '
                       'line 5, column 22: Field "sequence_batching" is specified along with field "dynamic_batching"'),
    "two_strategies": (more("sequence_batching { direct { } oldest { } }"), 'failed to read text proto from {path}: '
                       'line 5, column 32: Field "oldest" is specified along with field "direct"'),
    "batching_ensemble": ('platform: "ensemble" dynamic_batching { } ensemble_scheduling { }' + TENSORS, 'failed to read '
                          'text proto from {path}: line 1, column 43: Field "ensemble_scheduling" is specified along'),
    "metric_family": (more("model_metrics { metric_control { metric_identifier { } } }"), "metric identifier must "
                      "specify non-empty 'family'"),
    "metric_options": (more('model_metrics { metric_control { metric_identifier { family: "f" } } }'), "metric control "
                       "must specify 'histogram_options'"),
    "metric_nothing": (more("model_metrics { metric_control { } }"), "metric control must specify 'metric_identifier'"),
    "metric_buckets": (more('model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }'),
                       "histogram options must specify non-empty 'buckets'"),
    "cpu_with_gpus": (more('instance_group { name: "g" kind: KIND_CPU gpus: 0 }'), "instance group g of model "
                      "cpu_with_gpus has kind KIND_CPU but specifies one or more GPUs"),
    "model_with_gpus": (more('instance_group { name: "g" kind: KIND_MODEL gpus: 0 }'), "instance group g of model "
                        "model_with_gpus has kind KIND_MODEL but specifies one or more GPUs"),
    "no_backend": ('platform: "x"' + TENSORS, "unexpected platform type 'x' for no_backend"),
    "other_backend": ('backend: "tensorrt"' + TENSORS, "unable to find backend library for backend 'tensorrt'"),
    "pair": ('platform: "onnxruntime_onnx" backend: "python"' + TENSORS, "unexpected 'platform' and 'backend' pair, "
             "got:onnxruntime_onnx, python"),
    "ensemble": ('platform: "ensemble" ensemble_scheduling { }' + TENSORS, "must specify 'step' for ensemble 'ensemble'"),
    "agents": (more('model_repository_agents { agents { name: "decrypt" } }'), "model 'agents' asks for "
               "the repository agent 'decrypt'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    repository = tmp_path_factory.mktemp("wrong")
    for name, (config, _) in WRONG.items():
        write_model(repository, name, IDENTITY, None)
        text = config if isinstance(config, bytes) else config.encode()
        (repository / name / "config.pbtxt").write_bytes(text)
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("models are ready in")
        yield server, repository


@pytest.mark.spec("srv-R11")
@pytest.mark.parametrize(("model", "message"), [(name, message) for name, (_, message) in WRONG.items()])
def test_wrong_configuration(wrong, status_of, model, message):
    """The first words are the reference's; the file is named; and no traceback stands in the way."""
    server, repository = wrong
    path = repository / model / "config.pbtxt"
    status = status_of(server, model)
    assert status.startswith("UNAVAILABLE: ")
    reason = status.removeprefix("UNAVAILABLE: ").split(": ", 1)[1]
    assert reason.startswith(message.replace("{path}", str(path)))
    assert str(path) in reason


@pytest.mark.spec("srv-R13")
def test_name_mismatch(wrong, status_of):
    server, _ = wrong
    assert status_of(server, "other_name", "-").startswith(
        "UNAVAILABLE: Invalid argument: unexpected directory name 'other_name' for model 'another', directory name must "
        "equal model name"
    )
    # Neither name is served.
    assert server.get("/v2/models/other_name").status == 404
    assert server.get("/v2/models/another").status == 404


def test_no_traceback_for_any_of_them(wrong):
    server, _ = wrong
    assert not server_tracebacks(server.output)
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200


def test_unknown_field_is_answered_with_what_was_meant(wrong, status_of):
    server, _ = wrong
    assert "Did you mean max_batch_size?" in status_of(server, "unknown_field", "-")
    assert "Did you mean count?" in status_of(server, "unknown_inner", "-")
