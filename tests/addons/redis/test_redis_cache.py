"""The response cache in a real Redis server: shared by servers, kept across restarts, and no danger when it fails."""

import shutil
import socket
import socketserver
import subprocess
import threading
import time
from contextlib import closing, contextmanager, suppress

import msgspec
import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.e2e.models.test_response_cache import CACHED, CONFIG, COUNTER, array, count, metric, write_chain
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.repositories import write_model
from tests.support.server import serving

redis_client = pytest.importorskip("redis")

REDIS = shutil.which("redis-server")

pytestmark = pytest.mark.skipif(
    REDIS is None, reason="there is no redis-server: Debian has it in the package of that name"
)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Redis:
    """A Redis server that keeps nothing on disk."""

    def __init__(self, directory, password=""):
        self.port = free_port()
        flags = [f"--port {self.port}", "--bind 127.0.0.1", '--save ""', "--appendonly no", f"--dir {directory}"]
        flags += [f"--requirepass {password}"] if password else []
        self.process = subprocess.Popen(
            [REDIS, *" ".join(flags).replace('""', "").split(" ")], stdout=subprocess.PIPE, text=True
        )
        for line in self.process.stdout:
            if "eady to accept connections" in line:
                break
        else:
            raise AssertionError("redis-server did not start")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def repository(tmp_path):
    repository = tmp_path / "models"
    write_model(repository, "cached", COUNTER, CONFIG + CACHED)
    return repository


def flags(redis, *more):
    return (f"--cache-config=redis,host=127.0.0.1,port={redis.port}", *more)


@pytest.mark.spec("srv-R22")
def test_two_servers_share_it(redis, repository):
    with serving(repository, flags=flags(redis)) as one:
        first = infer(one, "cached", {"IN": array(1)}, id="a")
        inserted_within(one)
        with serving(repository, flags=flags(redis)) as two:
            second = infer(two, "cached", {"IN": array(1)}, id="b")
            assert second["COUNT"].tolist() == first["COUNT"].tolist()
            assert second["OUT"].tolist() == array(1).tolist()
            assert second.document["parameters"] == {"answered": True}
            assert metric(two, "nv_inference_exec_count", "cached") == 0
            assert metric(two, "nv_cache_num_hits_per_model", "cached") == 1
            assert "nv_cache_util" not in two.metrics()  # that would be somebody else's figures
    with serving(repository, flags=flags(redis)) as later:
        assert count(later, "cached", array(1)) == 1
        assert metric(later, "nv_inference_exec_count", "cached") == 0


def inserted_within(server, model="cached", deadline_s=60):
    """Ask until the answer comes from the cache: inserting it is nobody's business to wait for."""
    end = time.monotonic() + deadline_s
    while not metric(server, "nv_cache_num_hits_per_model", model):
        assert time.monotonic() < end
        infer(server, model, {"IN": array(1)})


def test_outputs_of_one_name_are_kept(redis, repository):
    file = repository / "cached" / "1" / "model.py"
    file.write_text(file.read_text().replace("InferenceResponse(wanted,", "InferenceResponse(wanted * 2,"))
    with serving(repository, flags=flags(redis)) as server:
        names = [output["name"] for output in infer(server, "cached", {"IN": array(1)}).document["outputs"]]
        inserted_within(server, deadline_s=20)
        again = infer(server, "cached", {"IN": array(1)}).document["outputs"]
        assert [output["name"] for output in again] == names == ["COUNT", "OUT"] * 2


def test_other_code_has_other_answers(redis, repository):
    with serving(repository, flags=flags(redis)) as server:
        assert count(server, "cached", array(1)) == 1
        inserted_within(server)
    file = repository / "cached" / "1" / "model.py"
    file.write_text(file.read_text().replace("self.executions = 0", "self.executions = 50"))
    with serving(repository, flags=flags(redis)) as server:
        assert count(server, "cached", array(1)) == 51


def test_ensembles_share_it_as_long_as_their_parts_are_the_same(redis, tmp_path):
    repository = tmp_path / "models"
    write_model(repository, "part", COUNTER, CONFIG)
    write_chain(repository, "chain", "part")
    write_chain(repository, "outer", "chain")
    with serving(repository, flags=flags(redis)) as one:
        first = count(one, "outer", array(1))
        inserted_within(one, "outer")
    with serving(repository, flags=flags(redis)) as two:
        assert count(two, "outer", array(1)) == first
        assert metric(two, "nv_inference_exec_count", "part") == 0
    file = repository / "part" / "1" / "model.py"
    file.write_text(file.read_text().replace("self.executions = 0", "self.executions = 50"))
    with serving(repository, flags=flags(redis)) as other:
        assert count(other, "outer", array(1)) > 50


def test_a_redis_server_that_goes_away_costs_no_answer(redis, repository):
    with serving(repository, flags=flags(redis)) as server:
        assert count(server, "cached", array(1)) == 1
        redis.stop()
        counts = [count(server, "cached", array(1)) for _ in range(3)]
        assert counts[-1] > counts[0]
        server.wait_for(f"The response cache at 127.0.0.1:{redis.port} failed; requests are executed instead: ")


def _entry(name="OUT", datatype="FP32", shape=(1,), data=b"\0\0\0\0", parameters=None):
    return msgspec.msgpack.encode([[[name, datatype, shape, data]], parameters])


HOSTILE = {
    "no MessagePack": b"\xff" * 100,
    "another document": msgspec.msgpack.encode({"outputs": []}),
    "deep": b"\x91" * 100_000,
    "announced and missing": b"\xdd\xff\xff\xff\xff",
    "too few bytes": _entry(data=b"\0"),
    "too many bytes": _entry(data=b"\0" * 400_000),
    "negative": _entry(shape=(-1, -1)),
    "huge": _entry(shape=(2**62, 2**62), data=b""),
    "many strings": _entry(datatype="BYTES", shape=(2**62, 2**62), data=b"\0" * 400_000),
    "many outputs": msgspec.msgpack.encode([[[str(number), "FP32", (0,), b""] for number in range(100_000)], None]),
    "unknown datatype": _entry(datatype="FP99"),
    "no number of strings": _entry(datatype="BYTES", data=b"\xff\xff\xff\xff"),
    "no text": _entry().replace(b"OUT", b"\xff\xfe\xfd"),
    "a list as a parameter": _entry(parameters={"a": [1]}),
}


def test_hostile_entries_are_no_answers(redis, repository):
    """Whatever others write into Redis, requests are executed, and the log says why; over both ports."""
    with serving(repository, flags=flags(redis)) as server, closing(redis_client.Redis(port=redis.port)) as client:
        infer(server, "cached", {"IN": array(1)})
        wait_until(lambda: client.keys("pybackend:response:*"), "the entry")
        (key,) = client.keys("pybackend:response:*")
        seen = set()
        for value in HOSTILE.values():
            client.set(key, value)
            seen.add(count(server, "cached", array(1)))
            wait_until(lambda value=value: client.get(key) != value, "the answer to take the place of the entry")
        client.delete(key)
        client.hset(key, "a", "b")  # another type of Redis
        seen.add(count(server, "cached", array(1)))
        assert len(seen) == len(HOSTILE) + 1  # every one was executed
        server.wait_for("requests are executed instead: ")
        assert "Traceback" not in server.output


def test_an_entry_is_refused_by_its_number_of_dimensions_before_they_are_multiplied(redis, repository):
    with serving(repository, flags=flags(redis)) as server, closing(redis_client.Redis(port=redis.port)) as client:
        infer(server, "cached", {"IN": array(1)})
        wait_until(lambda: client.keys("pybackend:response:*"), "the entry")
        (key,) = client.keys("pybackend:response:*")
        client.set(key, _entry(shape=(2**62,) * 1000))
        assert count(server, "cached", array(1)) > 1
        server.wait_for("requests are executed instead: Expected `array` of length <= 64")


def test_values_of_models_in_an_entry_are_encoded(redis, repository):
    """A sound entry with unusual numbers and names is an answer, over both ports."""
    with serving(repository, flags=flags(redis)) as server, closing(redis_client.Redis(port=redis.port)) as client:
        infer(server, "cached", {"IN": array(1)})
        wait_until(lambda: client.keys("pybackend:response:*"), "the entry")
        (key,) = client.keys("pybackend:response:*")
        odd = {"large": 2**64 - 1, "small": -(2**63), "text\r\nX: y": "\0"}
        client.set(key, _entry(name="OUT\r\n", parameters={**odd, "not a number": float("nan")}))
        document = infer(server, "cached", {"IN": array(1)}).document
        del document["parameters"]["not a number"]
        assert document["parameters"] == odd
        assert [output["name"] for output in document["outputs"]] == ["OUT\r\n"]
        tensor = grpc_client.InferInput("IN", [*array(1).shape], "FP32")
        tensor.set_data_from_numpy(array(1))
        with grpc_client.InferenceServerClient(server.grpc_url) as grpc:
            answer = grpc.infer("cached", [tensor]).get_response()
        assert [output.name for output in answer.outputs] == ["OUT\r\n"]
        assert answer.parameters["large"].uint64_param == 2**64 - 1
        assert "Traceback" not in server.output


@contextmanager
def in_the_place_of(redis, answer):
    """Something else listens at the port of a Redis server that has ended, and answers everything in one way."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                while self.request.recv(1 << 16):
                    self.request.sendall(answer)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    with Server(("127.0.0.1", redis.port), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "answer", [b"*1\r\n" * 100_000, b"*999999999\r\n", b"\0" * 100], ids=["nested", "long", "zeros"]
)
@pytest.mark.thorough
def test_hostile_servers_are_no_danger(redis, repository, answer):
    """Neither to a lookup nor to an insertion, nor to the end of the server."""
    with serving(repository, flags=flags(redis)) as server:
        redis.stop()
        with in_the_place_of(redis, answer):
            assert [count(server, "cached", array(1)) for _ in range(2)] == [1, 2]
        assert server.stop() == 0
    assert "Traceback" not in server.output


def test_without_a_redis_server_there_is_no_start(repository):
    port = free_port()
    with serving(repository, flags=(f"--cache-config=redis,host=127.0.0.1,port={port}",), ready=False) as server:
        server.wait_for(f"error: the response cache at 127.0.0.1:{port} cannot be used: ")
        assert server.wait() == 1


def test_password_from_the_environment(tmp_path, repository, monkeypatch):
    redis = Redis(tmp_path, password="secret")
    try:
        for given in (None, "wrong"):
            if given:
                monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", given)
            with serving(repository, flags=flags(redis), ready=False) as server:
                server.wait_for(
                    r"cannot be used: .*\. Set TRITONCACHE_REDIS_PASSWORD, and TRITONCACHE_REDIS_USERNAME if"
                )
                assert server.wait() == 1
        monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
        with serving(repository, flags=flags(redis)) as server:
            assert np.isfinite(count(server, "cached", array(1)))
    finally:
        redis.stop()
