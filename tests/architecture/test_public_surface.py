"""The names and signatures that models rely on. A change here is a change for every model: it needs a changelog line."""

import inspect
import types

import c_python_backend_utils
import pytest
import triton_python_backend_utils as pb_utils

HELPERS = {
    "TRITON_STRING_TO_NUMPY",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
}
CLASSES = {
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
}
CONSTANTS = {
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
}
MODEL_CONTROL = {"is_model_ready", "load_model", "unload_model"}
NATIVE_ONLY = {
    "InferenceResponseSender",
    "InferenceTrace",
    "MemoryType",
    "Metric",
    "MetricKind",
    "ResponseIterator",
}


def _public(module):
    return {name for name, value in vars(module).items() if not (name.startswith("_") or name == "annotations")}


def test_pb_utils_has_these_names_and_no_others():
    modules = {name for name in _public(pb_utils) if isinstance(getattr(pb_utils, name), types.ModuleType)}
    # Models are known to reach numpy and friends through it.
    assert modules <= {"json", "struct", "np"}
    assert _public(pb_utils) - modules == HELPERS | CLASSES | CONSTANTS | MODEL_CONTROL


def test_native_module_has_what_models_look_for_there():
    names = (CLASSES - {"ModelConfig"}) | NATIVE_ONLY | MODEL_CONTROL
    assert {name for name in names if not hasattr(c_python_backend_utils, name)} == set()


@pytest.mark.parametrize("name", sorted(CLASSES - {"ModelConfig"}))
def test_both_modules_mean_the_same_class(name):
    assert getattr(c_python_backend_utils, name) is getattr(pb_utils, name)


@pytest.mark.parametrize(
    ("callable_name", "parameters"),
    [
        ("InferenceResponse", ["output_tensors", "error", "parameters"]),
        (
            "InferenceRequest",
            [
                "request_id",
                "correlation_id",
                "inputs",
                "requested_output_names",
                "model_name",
                "model_version",
                "flags",
                "timeout",
                "preferred_memory",
                "trace",
                "parameters",
            ],
        ),
        ("TritonError", ["message", "code"]),
        ("PreferredMemory", ["preferred_memory_type", "preferred_device_id"]),
        ("MetricFamily", ["name", "description", "kind"]),
        ("load_model", ["model_name", "config", "files"]),
        ("unload_model", ["model_name", "unload_dependents"]),
        ("is_model_ready", ["model_name", "model_version"]),
    ],
)
def test_parameters_have_the_names_that_models_use(callable_name, parameters):
    assert list(inspect.signature(getattr(pb_utils, callable_name)).parameters) == parameters


def test_tensor_takes_its_arguments_by_position_only():
    kinds = {parameter.kind for parameter in inspect.signature(pb_utils.Tensor).parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_ONLY}


@pytest.mark.parametrize("name", sorted(CLASSES | MODEL_CONTROL | (HELPERS - {"TRITON_STRING_TO_NUMPY"})))
def test_everything_public_is_documented(name):
    assert inspect.getdoc(getattr(pb_utils, name))
