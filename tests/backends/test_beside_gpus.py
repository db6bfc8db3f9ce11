"""Models without code on a machine with GPUs, which stand-ins make, where no framework has CUDA."""

import numpy as np
import pytest

from tests.support.frameworks import import_late
from tests.support.inference import infer
from tests.support.nvidia import StandIn, needs_stand_in
from tests.support.repositories import tensors
from tests.support.server import serving

import_late("onnxruntime")
import_late("onnx")
xgboost = import_late("xgboost")

pytestmark = [pytest.mark.thorough, needs_stand_in]

ROWS = np.random.default_rng(0).random((50, 4), np.float32)
FOREST = f"""
    backend: "fil" max_batch_size: 8
    input [ {tensors(input__0=("TYPE_FP32", [4]))} ] output [ {tensors(output__0=("TYPE_FP32", [1]))} ]
"""
NETWORK = 'backend: "onnxruntime" '


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return StandIn(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    from tests.backends.onnxruntime.graphs import addition

    repository = tmp_path_factory.mktemp("repository")
    forest = xgboost.train({"max_depth": 2, "nthread": 1}, xgboost.DMatrix(ROWS, ROWS[:, 0]), 2)
    models = {
        "forest": FOREST,
        "forest_on_gpu": FOREST + "instance_group { kind: KIND_GPU count: 2 }",
        "sum": NETWORK,
        "sum_on_cpu": NETWORK + "instance_group { kind: KIND_CPU }",
    }
    for name, config in models.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if "forest" in name:
            forest.save_model(version / "xgboost.json")
        else:
            addition(version / "model.onnx")
    return repository


def serving_beside_gpus(machine, repository, *flags):
    return serving(
        repository, flags=("--model-control-mode=explicit", *flags), python=machine.python(), env=machine.environment()
    )


def groups(server, model):
    return [
        (each["kind"], each["count"], each["gpus"])
        for each in server.get(f"/v2/models/{model}/config").json["instance_group"]
    ]


def load(server, model):
    return server.request("POST", f"/v2/repository/models/{model}/load", {}, deadline_s=60)


def test_a_backend_of_the_cpu_stays_there_and_one_of_gpus_says_what_its_framework_lacks(machine, repository):
    with serving_beside_gpus(machine, repository, "--load-model=forest", "--load-model=sum_on_cpu") as server:
        assert groups(server, "forest") == [("KIND_CPU", 1, [])]
        assert infer(server, "forest", {"input__0": ROWS[:3]})["output__0"].shape[0] == 3
        ones = np.ones((2, 3), np.float32)
        assert infer(server, "sum_on_cpu", {"a": ones, "b": ones})["sum"].tolist() == [[2] * 3] * 2
        refused = load(server, "forest_on_gpu")
        assert refused.status == 400
        assert (
            "instance group forest_on_gpu_0 of model forest_on_gpu has kind KIND_GPU but backend 'fil' computes on the CPU alone. "
            "Set kind: KIND_CPU, or start the server with --gpu-models=cpu."
        ) in refused.error
        lacking = load(server, "sum")
        assert lacking.status == 400
        assert "has no CUDAExecutionProvider here, it has " in lacking.error
        assert "or set kind: KIND_CPU in instance_group" in lacking.error


def test_the_operator_can_move_models_of_such_a_backend_to_the_cpu(machine, repository):
    with serving_beside_gpus(machine, repository, "--load-model=forest_on_gpu", "--gpu-models=cpu") as server:
        assert groups(server, "forest_on_gpu") == [("KIND_CPU", 2, [])]
        assert infer(server, "forest_on_gpu", {"input__0": ROWS[:3]})["output__0"].shape[0] == 3
        server.wait_for("model 'forest_on_gpu' is configured for GPUs, and runs on the CPU: --gpu-models=cpu")
