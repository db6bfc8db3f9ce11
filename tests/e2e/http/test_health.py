"""Live, ready and model ready: what probes see, with all models well and with some that failed."""

import pytest

from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served
from tests.support.server import serving

BROKEN = "raise ImportError('this model is broken on purpose')"
BROKEN_AT_VERSION_2 = """
class TritonPythonModel:
    def initialize(self, args):
        if args["model_version"] == "2":
            raise ValueError("version 2 is broken on purpose")

    def execute(self, requests):
        return []
"""


def model_document(path, ready):
    document = {"name": path.partition("/")[0], "ready": ready}
    return document if ready else {**document, "error": "Model version not ready"}


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A server named ``x`` that goes on although one model, and one version of another, failed to load."""
    repository = tmp_path_factory.mktemp("half")
    write_model(repository, "good", IDENTITY, identity_config())
    write_model(repository, "bad", BROKEN, identity_config())
    for version in (1, 2):
        write_model(
            repository,
            "partly",
            BROKEN_AT_VERSION_2,
            identity_config(extra="version_policy { all {} }"),
            version=version,
        )
    with serving(repository, flags=("--exit-on-error=false", "--id", "x"), ready=False) as server:
        server.wait_for(r"partly +\| 2 ")
        yield server


@served(flags=("--exit-on-error=false", "--strict-readiness=false"))
def lenient(repository):
    """A server whose only model failed to load, and which is ready all the same."""
    write_model(repository, "bad", BROKEN, identity_config())


@pytest.mark.spec("srv-H01", "srv-H51")
def test_live_and_ready(server):
    for probe in ("live", "ready"):
        reply = server.get(f"/v2/health/{probe}")
        assert (reply.status, reply.json) == (200, {probe: True})
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.spec("srv-H01", "srv-H51")
def test_strict_readiness_counts_failed_models(half):
    ready, live = half.get("/v2/health/ready"), half.get("/v2/health/live")
    assert (ready.status, ready.json) == (400, {"ready": False})
    assert (live.status, live.json) == (200, {"live": True})


@pytest.mark.spec("srv-H01")
def test_lenient_readiness_is_the_servers_own(lenient):
    assert lenient.get("/v2/health/ready").status == 200
    assert lenient.get("/v2/health/live").status == 200
    assert lenient.get("/v2/models/bad/ready").status == 400


@pytest.mark.spec("srv-H02")
@pytest.mark.parametrize("path", ["identity", "versions", "versions/versions/1", "versions/versions/3"])
def test_model_ready(server, path):
    reply = server.get(f"/v2/models/{path}/ready")
    assert (reply.status, reply.json) == (200, model_document(path, True))


@pytest.mark.spec("srv-H02")
@pytest.mark.parametrize("path", ["unknown", "identity/versions/7", "unknown/versions/1", "versions/versions/2"])
def test_model_not_ready(server, path):
    reply = server.get(f"/v2/models/{path}/ready")
    assert (reply.status, reply.json) == (400, model_document(path, False))


@pytest.mark.spec("srv-H02", "srv-H51")
def test_failed_versions_are_not_ready(half):
    for path, status in (
        ("good", 200),
        ("bad", 400),
        ("bad/versions/1", 400),
        ("partly", 200),
        ("partly/versions/1", 200),
        ("partly/versions/2", 400),
    ):
        reply = half.get(f"/v2/models/{path}/ready")
        assert (reply.status, reply.json) == (status, model_document(path, status == 200)), path


@pytest.mark.spec("srv-H02")
@pytest.mark.parametrize("version", ["abc", "-1", "1.0", "v1", "+1", "%31x", ""])
def test_version_that_is_no_number_is_no_route(server, version):
    reply = server.get(f"/v2/models/identity/versions/{version}/ready")
    assert (reply.status, reply.error.partition(".")[0]) == (404, "Not Found")


@pytest.mark.spec("srv-H03")
def test_server_id(half, server):
    assert half.get("/v2").json["name"] == "x"
    assert server.get("/v2").json["name"] == "triton"


@pytest.mark.spec("srv-H05")
@pytest.mark.parametrize("suffix", ["", "/config", "/infer"])
@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("unknown", 404, "Request for unknown model: 'unknown' is not found"),
        ("unknown/versions/1", 404, "Request for unknown model: 'unknown' is not found"),
        ("good/versions/7", 404, "Request for unknown model: 'good' version 7 is not found"),
        (
            "bad",
            404,
            "Request for unknown model: 'bad' has no available versions. It failed: Internal: ImportError: this model is "
            "broken on purpose (the server's log has the rest)",
        ),
        ("bad/versions/1", 503, "Request for unknown model: 'bad' version 1 is not at ready state"),
        ("partly/versions/2", 503, "Request for unknown model: 'partly' version 2 is not at ready state"),
    ],
)
def test_model_lookup(half, path, status, message, suffix):
    method, body = ("POST", b"{}") if suffix == "/infer" else ("GET", None)
    reply = half.request(method, f"/v2/models/{path}{suffix}", body)
    assert (reply.status, reply.error) == (status, message)


@pytest.mark.spec("srv-H05")
def test_lower_version_answers_while_the_highest_is_not_ready(half):
    assert half.get("/v2/models/partly").json["versions"] == ["1"]
