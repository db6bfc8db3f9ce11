"""What asks for a GPU on a machine without one: it is refused in a sentence with the way out, or has no effect."""

import numpy as np
import pytest

from tests.support.laboratory import laboratory, write_laboratory
from tests.support.machine import without_gpu
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

pytestmark = without_gpu

NO_GPU = (
    "has kind KIND_GPU but server does not support GPUs. This machine has no NVIDIA driver: there is no /dev/nvidiactl. Set kind: "
    "KIND_CPU, or start the server with --gpu-models=cpu."
)
PLAN = "A TensorRT plan runs in native code on the GPU that it was built for: put the ONNX file that it was built from into model.onnx"

REFUSED = {
    "on_gpu": ("instance_group { kind: KIND_GPU }", f"instance group on_gpu_0 of model on_gpu {NO_GPU}"),
    "on_some": (
        "instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }",
        f"instance group on_some_1 of model on_some {NO_GPU}",
    ),
    "numbered": (
        "instance_group { gpus: 0 }",
        "instance group numbered_0 of model numbered has kind KIND_CPU but specifies one or more GPUs. Remove 'gpus'.",
    ),
}

FOREIGN = {
    "plan": ('backend: "tensorrt"', "model.plan", PLAN),
    "old_plan": ('platform: "tensorrt_plan"', "model.plan", PLAN),
    "pipeline": ('backend: "dali"', "model.dali", "DALI pipelines run in native code on a GPU: a model.py with Pillow"),
}

ACCEPTED = {
    "graphs": "optimization { cuda { graphs: true } input_pinned_memory { enable: true } gather_kernel_buffer_threshold: 1 }",
    "accelerators": 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
    "devices": 'instance_group { kind: KIND_MODEL secondary_devices { kind: KIND_NVDLA } profile: "0" host_policy: "gpu_0" }',
    "inputs": 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }',
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    for name, (extra, _) in REFUSED.items():
        write_model(repository, name, "raise SystemExit('code of the model has run')", identity_config(extra=extra))
    for name, (config, file, _) in FOREIGN.items():
        write_model(repository, name, "", config, filename=file)
    for name, extra in ACCEPTED.items():
        write_laboratory(repository, name, extra)
    write_model(repository, "moving", IDENTITY, identity_config(extra="instance_group { kind: KIND_CPU }"))
    return repository


@pytest.fixture(scope="module")
def server(repository):
    flags = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in (*ACCEPTED, "moving")))
    with serving(repository, flags=flags) as server:
        yield server


def load(server, model):
    return server.request("POST", f"/v2/repository/models/{model}/load", {})


@pytest.mark.spec("srv-S02")
@pytest.mark.parametrize("model", REFUSED)
def test_instances_that_need_one_are_refused_before_any_code_of_the_model_runs(server, model):
    reply = load(server, model)
    assert reply.status == 400
    assert REFUSED[model][1] in reply.error
    assert "code of the model has run" not in server.output


@pytest.mark.parametrize("model", FOREIGN)
def test_files_that_only_a_gpu_can_run_are_refused_with_a_file_that_runs_here(server, model):
    reply = load(server, model)
    assert reply.status == 500
    assert FOREIGN[model][2] in reply.error


def test_a_model_that_serves_goes_on_when_its_new_configuration_needs_one(server, repository):
    config = repository / "moving" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    reply = load(server, "moving")
    assert reply.status == 400
    assert f"instance group moving_0 of model moving {NO_GPU}" in reply.error
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [4]}]}
    assert server.infer("moving", body).json["outputs"][0]["data"] == [4]
    assert server.get("/v2/models/moving/config").json["instance_group"][0]["kind"] == "KIND_CPU"


@pytest.mark.spec("srv-S23")
@pytest.mark.parametrize("model", ACCEPTED)
def test_settings_for_gpus_have_no_effect(server, model):
    code = "return out(OUT=np.float32([tensor('FP32').is_cpu(), *tensor('FP32').__dlpack_device__()]))"
    answer = laboratory(server, model)(code, FP32=np.float32([1]))
    assert answer["OUT"].tolist() == [1, 1, 0]


def test_tensors_of_a_gpu_are_refused_before_they_are_touched(server, snapshot):
    code = """
        class OnGpu:
            def __dlpack_device__(self):
                return (2, 0)
            def __dlpack__(self, **options):
                raise AssertionError("it was asked for")
        return pb_utils.Tensor.from_dlpack("OUT", OnGpu())
    """
    answer = laboratory(server, "inputs")(code)
    assert answer.status == 500
    assert answer.error == snapshot
