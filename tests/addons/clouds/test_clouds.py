"""The front ends for SageMaker and Vertex AI: routes, media types, variables, and their ports among the others."""

import json
import os

import numpy as np
import pytest

from tests.e2e.access.conftest import BODY
from tests.support.server import ServerProcess, serving

pytestmark = pytest.mark.spec("srv-H45")

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
AIP = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}
REDIRECT = "X-Vertex-Ai-Triton-Redirect"


def environment(**variables):
    return {**os.environ, **variables}


def port(server: ServerProcess, name: str) -> int:
    return int(server.wait_for(rf"Started {name} HTTPService at 0.0.0.0:(\d+)")[1])


@pytest.fixture(scope="module")
def server(repository):
    """Both clouds; HTTP and gRPC too, because they are asked for."""
    flags = (
        "--allow-sagemaker",
        "--sagemaker-port=0",
        "--allow-vertex-ai=true",
        "--vertex-ai-port=0",
        "--vertex-ai-default-model=tell",
        "--allow-http=true",
        "--allow-grpc=true",
        "--http-header-forward-pattern=^x-amzn-sagemaker-custom-attributes$",
        "--http-restricted-api=logging:key=secret",
    )
    env = environment(SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="identity", **AIP)
    with serving(repository, flags=flags, env=env) as server:
        yield server


def binary_body(media_type):
    array = np.array([1.5, 2.5], np.float32)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": array.nbytes}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return array, text + array.tobytes(), {"Content-Type": f"{media_type}{len(text)}"}


def binary_answer(reply, media_type):
    content_type = reply.headers["content-type"]
    assert content_type.startswith(media_type), reply
    assert "inference-header-content-length" not in reply.headers
    return np.frombuffer(reply.body[int(content_type.removeprefix(media_type)) :], np.float32)


def test_sagemaker(server):
    at = port(server, "Sagemaker")
    assert server.request("GET", "/ping", port=at).status == 200
    assert server.request("POST", "/ping", port=at).status == 405
    assert server.request("GET", "/invocations", port=at).status == 405
    for path in ("/", "/v2", "/v2/models/identity/infer", "/invocations/", "/models"):
        assert server.request("GET", path, port=at).status == 404
    reply = server.request("POST", "/invocations", BODY, port=at)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [0.5])
    assert reply.headers["content-type"] == "application/json"
    array, body, headers = binary_body(SAGEMAKER)
    assert (
        binary_answer(server.request("POST", "/invocations", body, headers, port=at), SAGEMAKER).tolist()
        == array.tolist()
    )
    wrong = server.request("POST", "/invocations", {"inputs": []}, port=at)
    assert (wrong.status, "error" in wrong.json) == (400, True)
    for digits in ("", "x", "-1", "1;charset=utf-8", "9" * 30):
        reply = server.request("POST", "/invocations", body, {"Content-Type": SAGEMAKER + digits}, port=at)
        assert (reply.status, reply.error) == (
            400,
            f"the Content-Type has to end with the number of bytes of the JSON part: {SAGEMAKER}N",
        )


def test_vertex_ai(server):
    at = port(server, "Vertex AI")
    assert server.request("GET", "/health", port=at).status == 200
    assert server.request("GET", "/predict", port=at).status == 405
    reply = server.request("POST", "/predict", BODY, {"X-Amzn-SageMaker-Custom-Attributes": "a=b"}, port=at)
    assert (reply.status, reply.json["model_name"]) == (200, "tell")
    assert json.loads(reply.json["outputs"][0]["data"][0]) == {"X-Amzn-SageMaker-Custom-Attributes": "a=b"}


def test_redirects(server):
    """POST to the predict route reaches every route of the v2 protocol, within the restrictions of HTTP."""
    at = port(server, "Vertex AI")

    def redirected(target, body=None, **headers):
        return server.request("POST", "/predict", body, {REDIRECT: target, **headers}, port=at)

    assert redirected("v2").json["name"] == "triton"
    assert redirected("v2/health/live").status == 200
    assert redirected("/v2/models/identity/ready", b"{}").status == 200
    assert redirected("v2/models/identity/config").json["name"] == "identity"
    assert redirected("v2/models/identity/infer", BODY).json["model_name"] == "identity"
    array, body, headers = binary_body(VERTEX)
    assert binary_answer(redirected("v2/models/identity/infer", body, **headers), VERTEX).tolist() == array.tolist()
    assert redirected("v2/models/no/infer", BODY).status == 404
    assert redirected("nothing").status == 404
    assert redirected("v2/logging").error == "This API is restricted, expecting header 'key'"
    assert redirected("v2/logging", key="secret").status == 200


def test_variables_of_vertex_ai(repository, tmp_path, snapshot):
    """AIP_MODE starts it without HTTP and gRPC; AIP_STORAGE_URI is the repository; two models need a default."""
    env = environment(AIP_MODE="PREDICTION", AIP_HTTP_PORT="0", AIP_STORAGE_URI=str(repository), **AIP)
    server = ServerProcess([], "--metrics-address=127.0.0.1", env=env)
    try:
        at = port(server, "Vertex AI")
        server.wait_for("2 of 2 models are ready")
        reply = server.request("POST", "/predict", BODY, port=at)
        assert reply.error == snapshot
        assert server.request("POST", "/predict", BODY, {REDIRECT: "v2/models/identity/infer"}, port=at).status == 200
        assert "Started HTTPService" not in server.output
        assert "Started GRPC" not in server.output
    finally:
        assert server.stop() == 0


def test_an_api_key_for_a_cloud(repository, tmp_path):
    """Without an exemption a cloud's own port needs a key as well; the only model needs no name."""
    (tmp_path / "keys").write_text("first-key-0123456789")
    (tmp_path / "models").mkdir()
    os.symlink(repository / "identity", tmp_path / "models" / "identity")
    flags = ("--allow-sagemaker", "--sagemaker-port=0", f"--api-key-file={tmp_path / 'keys'}")
    with serving(tmp_path / "models", flags=(*flags, "--api-key-exempt=sagemaker,health")) as server:
        assert server.request("POST", "/invocations", BODY, port=port(server, "Sagemaker")).status == 200
    with serving(tmp_path / "models", flags=(*flags, "--api-key-exempt=health")) as server:
        at = port(server, "Sagemaker")
        assert server.request("GET", "/ping", port=at).status == 200
        assert server.request("POST", "/invocations", BODY, port=at).status == 401


def test_the_action_of_sagemaker(repository):
    env = environment(
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="tell",
        SAGEMAKER_TRITON_INFERENCE_TYPE="generate",
        SAGEMAKER_TRITON_PING_MODE="live",
    )
    with serving(repository, flags=("--allow-sagemaker", "--sagemaker-port=0"), env=env) as server:
        at = port(server, "Sagemaker")
        assert json.loads(server.request("POST", "/invocations", {"IN": 1.0, "a": 1}, port=at).json["TOLD"]) == {"a": 1}
        assert server.request("GET", "/ping", port=at).status == 200


@pytest.mark.parametrize(
    ("flags", "variables", "error"),
    [
        (
            ("--allow-vertex-ai",),
            {},
            "Error: Vertex AI sets the variable AIP_HEALTH_ROUTE to a path such as /predict: set it",
        ),
        (
            (),
            {"AIP_MODE": "PREDICTION", **AIP, "AIP_HTTP_PORT": "http"},
            "Error: the variable AIP_HTTP_PORT is http, which is no port",
        ),
        (
            ("--allow-sagemaker",),
            {"SAGEMAKER_TRITON_INFERENCE_TYPE": "train"},
            "Error: the variable SAGEMAKER_TRITON_INFERENCE_TYPE is train: set it to infer, generate or generate_stream.",
        ),
        (
            ("--allow-sagemaker", "--sagemaker-safe-port-range=9000-9100"),
            {},
            "error: The server cannot listen to HTTP requests at port 0, allowed port range is [9000, 9100]",
        ),
        (
            ("--allow-sagemaker", "--sagemaker-port=9000", "--http-address=0.0.0.0", "--http-port=9000"),
            {},
            "error: The server cannot listen to HTTP requests and Sagemaker requests at the same address and port 0.0.0.0:9000",
        ),
    ],
)
def test_settings_that_stop_the_start(repository, flags, variables, error):
    server = ServerProcess([repository], *flags, env=environment(**variables))
    assert server.wait() == 1
    assert server.output.startswith(error)
