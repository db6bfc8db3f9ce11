"""The two modules that models import: their names, at import time, with no server about."""

import subprocess
import sys
from pathlib import Path

import c_python_backend_utils
import pytest
import triton_python_backend_utils as pb_utils

ROOT = Path(__file__).resolve().parents[3]

PB_UTILS = """
InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE TRITONSERVER_RESPONSE_COMPLETE_FINAL
TRITON_STRING_TO_NUMPY Tensor TritonError TritonModelException deserialize_bytes_tensor get_input_config_by_name
get_input_tensor_by_name get_model_dir get_output_config_by_name get_output_tensor_by_name is_model_ready json
load_model np numpy_to_triton_type serialize_byte_tensor struct triton_string_to_numpy triton_to_numpy_type
unload_model using_decoupled_model_transaction_policy
"""
NATIVE = """
InferenceRequest InferenceResponse InferenceResponseSender InferenceTrace Logger MemoryType Metric MetricFamily
MetricKind PreferredMemory ResponseIterator SharedMemory TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU Tensor
TritonError TritonModelException async_event_future_done_callback is_model_ready load_model shared_memory unload_model
"""


@pytest.mark.parametrize(("module", "names"), [(pb_utils, PB_UTILS), (c_python_backend_utils, NATIVE)])
def test_exported_names(module, names):
    assert sorted(module.__all__) == sorted(names.split())
    for name in module.__all__:
        assert hasattr(module, name)


def test_constants():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2


@pytest.mark.parametrize("absent", ["TRITONSERVER_MEMORY_CPU_PINNED", "InferenceException", "InferenceTrace"])
def test_names_that_are_not_there(absent):
    assert not hasattr(pb_utils, absent)


def test_classes_say_the_native_modules_name_and_are_found_under_it():
    for name in NATIVE.split():
        value = getattr(c_python_backend_utils, name)
        if isinstance(value, type) and not issubclass(value, int):
            assert value.__module__ == "c_python_backend_utils"
            assert value.__name__ == name


def _run(code):
    paths = [str(ROOT / "stub"), str(ROOT / "sdk")]
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {paths!r}\n" + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


AT_IMPORT = """
import c_python_backend_utils
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import *
from triton_python_backend_utils import (
    InferenceRequest, InferenceResponse, Logger, MetricFamily, ModelConfig, PreferredMemory, Tensor, TritonError,
    TritonModelException, get_model_dir, is_model_ready, load_model, unload_model,
)
from typing import List

LOGGER = pb_utils.Logger
DEFAULT = pb_utils.InferenceResponse(error=pb_utils.TritonError("not yet", pb_utils.TritonError.UNAVAILABLE))
MEMORY = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)

class Failure(pb_utils.TritonModelException):
    pass

class TritonPythonModel:
    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        return [DEFAULT] * len(requests)

    def helper(self, tensor: pb_utils.Tensor, family: pb_utils.MetricFamily) -> pb_utils.TritonError:
        raise Failure(np.array([struct.calcsize("i"), len(json.dumps({}))]))

print(TritonPythonModel.execute.__annotations__["requests"])
"""


@pytest.mark.spec("pb-L11")
def test_everything_is_there_while_the_model_file_is_imported():
    assert _run(AT_IMPORT) == "typing.List[c_python_backend_utils.InferenceRequest]\n"


AUTHORS_TEST = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            pb_utils.Logger.log_info("doubling")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values * 2)]))
        return responses

sent = pb_utils.Tensor("IN", np.arange(3, dtype=np.float32))
request = pb_utils.InferenceRequest(inputs=[sent], requested_output_names=["OUT"], model_name="double")
(response,) = TritonPythonModel().execute([request])
assert not response.has_error()
assert pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy().tolist() == [0.0, 2.0, 4.0]
try:
    request.exec()
except pb_utils.TritonModelException as error:
    print(error)
packages = {name.split(".")[0] for name in sys.modules}
assert not packages & {"pybackend", "pybackend_stub", "asyncio", "concurrent", "multiprocessing", "logging"}, packages
"""


@pytest.mark.spec("pb-U01")
def test_a_model_can_be_tested_without_a_server():
    assert _run(AUTHORS_TEST).startswith("BLS is only supported during the 'execute' function.")
