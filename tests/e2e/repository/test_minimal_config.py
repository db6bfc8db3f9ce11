"""Configurations that the model completes, or that need nothing written at all; and who may not contradict whom."""

import re

import pytest

from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

COMPLETING = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {body}
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]
"""
TENSORS = """
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
"""


def completing(body):
    return COMPLETING.replace("{body}", body.strip())


MODELS = {
    # No config.pbtxt at all.
    "bare": (completing(TENSORS), None),
    "batching": (completing(f"config.set_max_batch_size(4)\n        config.set_dynamic_batching()\n{TENSORS}"), None),
    # Only what the model does not say itself.
    "half": (
        completing('config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})'),
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]',
    ),
    "the_same": (completing(TENSORS), identity_config("TYPE_FP32", "[ 4 ]")),
    "not_decoupled": (completing(f'config.set_model_transaction_policy({{"decoupled": False}})\n{TENSORS}'), None),
}
CONFLICTS = {
    "other_type": (
        completing('config.add_input({"name": "IN", "data_type": "TYPE_INT8", "dims": [4]})'),
        identity_config("TYPE_FP32", "[ 4 ]"),
        "unable to load model 'other_type', configuration expects datatype TYPE_FP32 for input 'IN', model provides "
        "TYPE_INT8",
    ),
    "other_dims": (
        completing('config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [5]})'),
        identity_config("TYPE_FP32", "[ 4 ]"),
        "model 'other_dims', tensor 'OUT': the model expects dims [5] but the model configuration specifies dims [4]",
    ),
    "other_batch": (
        completing("config.set_max_batch_size(2)"),
        identity_config(extra="max_batch_size: 4"),
        "configuration specified max_batch_size 4, but in auto-complete-config function for model 'other_batch' "
        "specified max_batch_size 2",
    ),
    "other_scheduler": (
        completing('config.as_dict()["sequence_batching"] = {}'),
        identity_config(extra="max_batch_size: 4 dynamic_batching { }"),
        "Cannot update scheduling choice from dynamic_batching to sequence_batching when auto-completing.",
    ),
    "unknown_property": (
        completing('config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "shape": 1})'),
        None,
        "input 'IN' in auto-complete-config function for model 'unknown_property' contains property other than 'name', "
        "'data_type', 'dims' and 'optional'",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("minimal")
    for name, (code, config) in MODELS.items():
        write_model(repository, name, code, config)
    for name, (code, config, _) in CONFLICTS.items():
        write_model(repository, name, code, config)
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"unknown_property +\| ")
        yield server


@pytest.fixture(scope="module")
def disabled(tmp_path_factory):
    """A server that takes configurations as they are written."""
    repository = tmp_path_factory.mktemp("disabled")
    write_model(repository, "bare", *MODELS["bare"])
    write_model(repository, "half", MODELS["half"][0], f'backend: "python" {MODELS["half"][1]}')
    unsaid = identity_config("TYPE_FP32", "[ 4 ]").replace('backend: "python"', "")
    write_model(repository, "no_backend", IDENTITY, unsaid)
    write_model(repository, "no_file", IDENTITY, unsaid)
    (repository / "no_file" / "1" / "model.py").rename(repository / "no_file" / "1" / "weights.py")
    code = completing('raise RuntimeError("nobody may call this")')
    write_model(repository, "complete", code, identity_config("TYPE_FP32", "[ 4 ]"))
    flags = ("--disable-auto-complete-config", "--exit-on-error=false")
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for(r"no_file +\| ")
        yield server


REQUEST = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}


@pytest.mark.spec("srv-R15")
@pytest.mark.parametrize("model", ["bare", "half", "the_same", "not_decoupled"])
def test_little_or_nothing_written(server, model):
    config = server.get(f"/v2/models/{model}/config").json
    assert (config["name"], config["backend"], config["default_model_filename"]) == (model, "python", "model.py")
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"] + config["output"]] == [
        ("IN", "TYPE_FP32", [4]),
        ("OUT", "TYPE_FP32", [4]),
    ]
    assert config["instance_group"][0]["name"] == model
    assert server.infer(model, REQUEST).json["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.spec("srv-R14")
def test_model_adds_tensors_batching_and_scheduler(server):
    config = server.get("/v2/models/batching/config").json
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (4, [4])
    assert server.get("/v2/models/batching").json["inputs"][0]["shape"] == [-1, 4]
    assert server.infer("batching", REQUEST).status == 400
    batch = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2, 4], "data": [*range(8)]}]}
    assert server.infer("batching", batch).json["outputs"][0]["shape"] == [2, 4]


@pytest.mark.spec("srv-R14")
@pytest.mark.parametrize(("model", "message"), [(name, message) for name, (_, _, message) in CONFLICTS.items()])
def test_conflict_is_a_load_error(server, status_of, model, message):
    status_of(server, model)
    line = next(line for line in server.output.splitlines() if f"failed to load '{model}' version 1" in line)
    assert message in line
    assert server.get(f"/v2/models/{model}/ready").status == 400


@pytest.mark.spec("srv-R14")
def test_disabled_by_flag(disabled, status_of):
    assert disabled.get("/v2/models/complete/config").json["output"][0]["dims"] == [4]
    assert disabled.infer("complete", REQUEST).status == 200
    assert "nobody may call this" not in disabled.output
    assert re.match(r"UNAVAILABLE: Invalid argument: failed to read text proto from .*config.pbtxt: ",
                    status_of(disabled, "bare", "-"))  # fmt: skip
    assert disabled.get("/v2/models/half").json["outputs"] == []
    disabled.wait_for(
        "model 'half': it has no outputs. If that is a mistake, add an output block to config.pbtxt, or add_"
    )


@pytest.mark.spec("srv-R32")
def test_the_backend_that_a_file_names_needs_no_auto_complete(disabled, status_of):
    config = disabled.get("/v2/models/no_backend/config").json
    assert (config["backend"], config["default_model_filename"]) == ("python", "model.py")
    assert disabled.infer("no_backend", REQUEST).status == 200
    assert "must specify 'platform' or 'backend' for 'no_file'" in status_of(disabled, "no_file", "-")
