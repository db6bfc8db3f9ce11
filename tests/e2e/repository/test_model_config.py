"""config.pbtxt as operators write it: every field and form of it."""

import json
import re

import pytest
from google.protobuf import json_format, text_format

from tests.support.repositories import IDENTITY, write_model
from tests.support.served import served

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
