"""Server metadata, model metadata and configuration as clients read them."""

import pytest

from tests.e2e.http.models import DATATYPES
from tests.support.machine import without_gpu

# Every extension that the specification names, in its order, with a request that is answered only where it is served.
EXTENSIONS = {
    "classification": ("POST", "/v2/models/add_sub/infer"),
    "sequence": ("POST", "/v2/models/add_sub/infer"),
    "model_repository": ("POST", "/v2/repository/index"),
    "model_repository(unload_dependents)": ("POST", "/v2/repository/models/unknown/unload"),
    "schedule_policy": ("POST", "/v2/models/add_sub/infer"),
    "model_configuration": ("GET", "/v2/models/add_sub/config"),
    "system_shared_memory": ("GET", "/v2/systemsharedmemory/status"),
    "cuda_shared_memory": ("GET", "/v2/cudasharedmemory/status"),
    "binary_tensor_data": ("POST", "/v2/models/add_sub/infer"),
    "parameters": ("POST", "/v2/models/add_sub/infer"),
    "statistics": ("GET", "/v2/models/add_sub/stats"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}


@pytest.mark.spec("srv-H03")
def test_server_metadata(server):
    reply = server.get("/v2")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json) == ["name", "version", "extensions"]
    assert reply.json["version"].count(".") >= 2


@pytest.mark.spec("srv-H03")
def test_the_extensions_are_those_whose_routes_answer(server):
    asked = {name: server.request(method, path, b"{}") for name, (method, path) in EXTENSIONS.items()}
    served = [name for name, reply in asked.items() if not reply.body.startswith(b'{"error":"Not Found')]
    assert server.get("/v2").json["extensions"] == served
    assert {"model_configuration", "binary_tensor_data", "parameters", "classification"} <= set(served)


def test_the_names_of_the_models_that_serve(server):
    reply = server.get("/v2/models")
    index = server.request("POST", "/v2/repository/index", {"ready": True}).json
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == {"models": sorted({row["name"] for row in index})}
    assert "identity" in reply.json["models"]


@pytest.mark.spec("srv-H04")
def test_model_metadata(server):
    reply = server.get("/v2/models/add_sub")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == {
        "name": "add_sub",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": name, "datatype": "FP32", "shape": [4]} for name in ("INPUT0", "INPUT1")],
        "outputs": [{"name": name, "datatype": "FP32", "shape": [4]} for name in ("OUTPUT0", "OUTPUT1")],
    }


@pytest.mark.spec("srv-H04")
def test_batch_dimension_comes_first(server):
    found = server.get("/v2/models/batched").json
    assert [tensor["shape"] for tensor in found["inputs"]] == [[-1, 4], [-1, -1], [-1, 4]]
    assert [tensor["shape"] for tensor in found["outputs"]] == [[-1, 4], [-1, -1], [-1, 4]]


@pytest.mark.spec("srv-H04")
def test_datatypes_have_their_wire_names(server):
    found = server.get("/v2/models/types").json
    assert [tensor["datatype"] for tensor in found["inputs"]] == list(DATATYPES)


@pytest.mark.spec("srv-H04")
def test_versions(server):
    assert server.get("/v2/models/versions").json["versions"] == ["1", "3"]
    for version in ("1", "3"):
        assert server.get(f"/v2/models/versions/versions/{version}").json["versions"] == [version]


MINIMAL_CONFIG = {
    "name": "identity",
    "platform": "",
    "backend": "python",
    "runtime": "",
    "version_policy": {"latest": {"num_versions": 1}},
    "max_batch_size": 0,
    "input": [
        {
            "name": "IN",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ],
    "output": [
        {
            "name": "OUT",
            "data_type": "TYPE_FP32",
            "dims": [-1],
            "label_filename": "",
            "is_shape_tensor": False,
            "is_non_linear_format_io": False,
        }
    ],
    "batch_input": [],
    "batch_output": [],
    "optimization": {
        "priority": "PRIORITY_DEFAULT",
        "input_pinned_memory": {"enable": True},
        "output_pinned_memory": {"enable": True},
        "gather_kernel_buffer_threshold": 0,
        "eager_batching": False,
    },
    "instance_group": [
        {
            "name": "identity",
            "kind": "KIND_CPU",
            "count": 1,
            "gpus": [],
            "secondary_devices": [],
            "profile": [],
            "passive": False,
            "host_policy": "",
        }
    ],
    "default_model_filename": "model.py",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
    "model_transaction_policy": {"decoupled": False},
}


@without_gpu
@pytest.mark.spec("srv-H06")
@pytest.mark.parametrize("path", ["identity", "identity/versions/1"])
def test_model_config(server, path):
    reply = server.get(f"/v2/models/{path}/config")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == MINIMAL_CONFIG
    assert list(reply.json) == list(MINIMAL_CONFIG)


@pytest.mark.spec("srv-H06")
def test_config_numbers_are_numbers(server):
    """64-bit integers as JSON numbers, in lists and alone, where protobuf's own JSON would print text."""
    config = server.get("/v2/models/raw/config").json
    assert config["input"][0]["dims"] == [-1, 2]
    assert config["max_batch_size"] == 4
    assert server.get("/v2/models/versions/config").json["version_policy"] == {"all": {}}
