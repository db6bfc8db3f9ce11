"""Tensors in a GPU's memory: the behaviour that is expected, and is not there yet. Each test fails until it is."""

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from triton_python_backend_utils import Tensor, TritonModelException
from tritonclient.utils import InferenceServerException

from tests.support.inference import infer
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import serving


def not_yet(raises):
    """Tensors lie in host memory, so the test fails in this way; once it passes, it fails until the mark is gone."""
    return pytest.mark.xfail(raises=raises, strict=True, reason="GPU tensors are not supported yet")


DOUBLE = """
import torch

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        doubled = [torch.from_dlpack(tensor).to("cuda") * 2 for tensor in tensors]
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", each)]) for each in doubled]
"""

CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN")
            memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
            for _ in range(2):
                call = pb_utils.InferenceRequest(model_name="double", requested_output_names=["OUT"], inputs=[given],
                                                 preferred_memory=memory)
                between = call.exec().output_tensors()[0]
                given = pb_utils.Tensor.from_dlpack("IN", between)
            lay = pb_utils.Tensor("ON_GPU", np.array([not between.is_cpu()]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", between), lay]))
        return responses
"""

ON_GPU = (
    'instance_group { kind: KIND_GPU } parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
)


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("torch")
    write_model(tmp_path, "double", DOUBLE, identity_config(extra=ON_GPU))
    outputs = tensors(OUT=("TYPE_FP32", [-1]), ON_GPU=("TYPE_BOOL", [1]))
    caller = f'backend: "python" input [ {tensors(IN=("TYPE_FP32", [-1]))} ] output [ {outputs} ] {ON_GPU}'
    write_model(tmp_path, "caller", CALLER, caller)
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--allow-client-shm=true",)) as server:
        yield server


@not_yet(TritonModelException)
def test_a_tensor_is_taken_over_where_it_lies():
    torch = pytest.importorskip("torch")
    given = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)
    tensor = Tensor.from_dlpack("X", given)
    assert (tensor.is_cpu(), tensor.__dlpack_device__()) == (False, (2, 0))
    assert torch.from_dlpack(tensor).data_ptr() == given.data_ptr()
    with pytest.raises(TritonModelException, match="Tensor is stored in GPU and cannot be converted to NumPy"):
        tensor.as_numpy()


@not_yet(AssertionError)
def test_an_output_in_a_gpus_memory_reaches_the_client(server):
    given = np.arange(1 << 20, dtype=np.float32)  # large enough to be seen half written without a wait for its stream
    np.testing.assert_array_equal(infer(server, "double", {"IN": given})["OUT"], given * 2)


@not_yet(AssertionError)
def test_tensors_between_models_on_one_gpu_stay_there(server):
    answer = infer(server, "caller", {"IN": np.arange(4, dtype=np.float32)})
    assert (answer["OUT"].tolist(), answer["ON_GPU"].tolist()) == ([0, 4, 8, 12], [True])


@not_yet(InferenceServerException)
@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_a_clients_memory_on_a_gpu_holds_inputs_and_outputs(server, protocol):
    memory = pytest.importorskip("tritonclient.utils.cuda_shared_memory", exc_type=RuntimeError)
    given = np.arange(4, dtype=np.float32)
    address = server.grpc_url if protocol is tritonclient.grpc else server.url
    region = memory.create_shared_memory_region("region", 2 * given.nbytes, 0)
    try:
        memory.set_shared_memory_region(region, [given])
        with protocol.InferenceServerClient(address) as client:
            client.register_cuda_shared_memory("region", memory.get_raw_handle(region), 0, 2 * given.nbytes)
            sent, wanted = protocol.InferInput("IN", [4], "FP32"), protocol.InferRequestedOutput("OUT")
            sent.set_shared_memory("region", given.nbytes)
            wanted.set_shared_memory("region", given.nbytes, offset=given.nbytes)
            client.infer("identity", [sent], outputs=[wanted])
            client.unregister_cuda_shared_memory("region")
        both = memory.get_contents_as_numpy(region, np.float32, [8])
        np.testing.assert_array_equal(both, np.concatenate([given, given]))
    finally:
        memory.destroy_shared_memory_region(region)
