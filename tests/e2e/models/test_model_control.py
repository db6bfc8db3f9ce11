"""Models that load, unload and look for other models, in a server that allows it."""

import json
import os
import shutil
import signal
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.support.connection import connected, post
from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import answer_of, infer, infer_body
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.log_lines import server_tracebacks
from tests.support.repositories import IDENTITY, PREAMBLE, identity_config, write_model
from tests.support.server import serving

EXPLICIT = ("--model-control-mode=explicit", "--load-model=laboratory", "--allow-model-overrides")
TENSORS = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
}

NEGATIVE = f"""{PREAMBLE}
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -r.inputs()[0].as_numpy())]) for r in requests]
"""

SLOW_TO_LOAD = f"""
{GATE}

class TritonPythonModel:
    execute = list

    def initialize(self, args):
        pass_gate(args["model_repository"], "initialize")
"""

INSIDE_INITIALIZE = """
import json

class TritonPythonModel:
    def initialize(self, args):
        self.heard = {}
        config = json.loads(args["model_config"])
        for function, *arguments in json.loads(config["parameters"]["calls"]["string_value"]):
            try:
                self.heard[function] = str(getattr(pb_utils, function)(*arguments))
            except pb_utils.TritonModelException as error:
                self.heard[function] = str(error)

    def execute(self, requests):
        heard = np.array([json.dumps(self.heard)], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", heard)]) for _ in requests]
"""

FORBIDDEN = """
CALLS = ((pb_utils.load_model, "target"), (pb_utils.unload_model, "target"), (pb_utils.is_model_ready, "target"))

def attempts():
    heard = []
    for function, name in CALLS:
        try:
            heard.append(str(function(name)))
        except pb_utils.TritonModelException as error:
            heard.append(str(error))
    return heard

HEARD = {"import": attempts()}

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        HEARD["auto_complete_config"] = attempts()
        return config

    def execute(self, requests):
        heard = np.array([repr(HEARD)], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", heard)]) for _ in requests]

    def finalize(self):
        for text in attempts():
            pb_utils.Logger.log_info(f"finalize heard: {text}")
"""


def initializing(*calls: tuple[str, ...]) -> str:
    """The configuration of a model that makes these calls in ``initialize``, and answers with what came of them."""
    return f"""
    backend: "python"
    input [ {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} ]
    output [ {{ name: "OUT" data_type: TYPE_STRING dims: 1 }} ]
    parameters {{ key: "calls" value {{ string_value: {json.dumps(json.dumps(calls))} }} }}
    """


def write_models(repository):
    for version in (2, 3):
        write_model(repository, "target", IDENTITY, identity_config(extra="version_policy { all {} }"), version=version)
    write_model(repository, "slow", SLOW_TO_LOAD, identity_config())
    write_model(repository, "broken", "raise ValueError('no weights')", identity_config())
    write_model(repository, "forbidden", FORBIDDEN, identity_config("TYPE_STRING"))
    for name, calls in {
        "self": [("load_model", "self"), ("unload_model", "self")],
        "first": [("load_model", "second"), ("is_model_ready", "second")],
        "second": [("load_model", "first"), ("unload_model", "first"), ("is_model_ready", "first")],
    }.items():
        write_model(repository, name, INSIDE_INITIALIZE, initializing(*calls))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("controlled")
    write_laboratory(repository, extra="instance_group { count: 2 kind: KIND_CPU }")
    write_models(repository)
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=EXPLICIT) as server:
        yield server


@pytest.fixture(scope="module")
def ask(server):
    """Runs code in a model; returns what it leaves in ``said``. ``failure(function, ...)`` is what a call raises."""
    return asking(server)


def asking(server):
    run = laboratory(server)

    def ask(code):
        helper = """
        def failure(function, *arguments, **named):
            try:
                return repr(function(*arguments, **named))
            except pb_utils.TritonModelException as error:
                return str(error)

        """
        whole = textwrap.dedent(helper) + textwrap.dedent(code) + "\nreturn out(OUT=text(json.dumps(said)))"
        answer = run(whole)
        assert answer.status == 200, answer.error
        return json.loads(answer["OUT"][0])

    return ask


@pytest.fixture(autouse=True)
def tidy(request):
    """Every test finds the models of the repository unloaded."""
    ask = request.getfixturevalue("ask") if "server" in request.fixturenames else None
    yield
    if ask is not None:
        ask("said = [pb_utils.unload_model(name) for name in ('target', 'new', 'slow', 'forbidden')]")


def versions(server, model="target"):
    """The versions that serve, as clients see them."""
    reply = server.get(f"/v2/models/{model}")
    return reply.json["versions"] if reply.status == 200 else reply.status


@pytest.mark.spec("pb-O01")
def test_load_and_unload(server, ask):
    assert versions(server) == 404
    said = ask("""
        said = [pb_utils.load_model("target")]
        said += [pb_utils.is_model_ready("target", version) for version in ("", "2", "3", "4")]
    """)
    assert said == [None, True, True, True, False]
    assert versions(server) == ["2", "3"]
    assert infer(server, "target", {"IN": np.ones(3, np.float32)})["OUT"].tolist() == [1, 1, 1]
    said = ask("""
        said = [pb_utils.unload_model("target"), pb_utils.is_model_ready("target"), pb_utils.unload_model("target")]
    """)
    assert said == [None, False, None]
    assert versions(server) == 404
    server.wait_until("/v2/health/ready", 200)


@pytest.mark.spec("pb-O01")
def test_configuration_in_place_of_the_written_one(server, ask):
    ask("said = pb_utils.load_model('target')")
    assert versions(server) == ["2", "3"]
    wrong = '"parameters": {"config": {{"backend":"python", "version_policy":{"specific":{"versions":[2]}}}}}'
    said = ask(f"said = failure(pb_utils.load_model, 'target', config={wrong!r})")
    assert said.startswith("Failed to load model: Failed to process the request for model 'laboratory_0_"), said
    assert "', message: failed to load 'target', failed to poll from model repository: failed to read" in said
    assert versions(server) == ["2", "3"]
    config = json.dumps({**TENSORS, "max_batch_size": 4, "version_policy": {"specific": {"versions": [2]}}})
    ask(f"said = pb_utils.load_model(model_name='target', config={config!r})")
    assert versions(server) == ["2"]
    assert server.get("/v2/models/target/config").json["max_batch_size"] == 4
    said = ask("said = [pb_utils.is_model_ready('target', version) for version in ('2', '3')]")
    assert said == [True, False]
    ask("said = pb_utils.load_model('target')")
    assert versions(server) == ["2", "3"]
    assert server.get("/v2/models/target/config").json["max_batch_size"] == 0


@pytest.mark.spec("pb-O01")
@pytest.mark.parametrize("size", [0, 5_000_000], ids=["in the frame", "in shared memory"])
def test_files_in_place_of_a_directory(server, ask, size):
    code = NEGATIVE + "#" * size
    assert (len(code) > 8192) == bool(size)
    ask("said = pb_utils.load_model('target')")
    prepare = f"files = {{'file:1/model.py': ({NEGATIVE!r} + '#' * {size}).encode()}}\n"
    said = ask(prepare + "said = failure(pb_utils.load_model, 'target', '', files)")
    assert "message: failed to load 'target', failed to poll from model repository: files are given without" in said
    assert versions(server) == ["2", "3"]
    for name in ("new", "target"):
        ask(prepare + f"said = pb_utils.load_model({name!r}, {json.dumps(TENSORS)!r}, files)")
        assert versions(server, name) == ["1"]
        assert infer(server, name, {"IN": np.ones(2, np.float32)})["OUT"].tolist() == [-1, -1]
        if name == "new":
            assert versions(server) == ["2", "3"]
    said = ask("said = failure(pb_utils.load_model, 'new')")
    assert "message: failed to load 'new', failed to poll from model repository: there is no directory 'new'" in said
    ask("said = pb_utils.load_model('target')")
    assert infer(server, "target", {"IN": np.ones(2, np.float32)})["OUT"].tolist() == [1, 1]


@pytest.mark.spec("pb-O01")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "load_model, 'gone'",
            "load model: {}failed to load 'gone', failed to poll from model repository: there is no",
        ),
        (
            "load_model, 'broken'",
            "load model: {}load failed for model 'broken': version 1 is at UNAVAILABLE state: Inter",
        ),
        ("load_model, ''", "load model: {}Model name cannot be empty. Please enter a valid name to deploy."),
        (
            "load_model, 'a/b'",
            "load model: {}invalid model name 'a/b', model name must not contain path traversal char",
        ),
        (
            "load_model, 'm', '{}', {'file:../x': b''}",
            "load model: {}failed to load 'm', failed to poll from model repository: 'file:../x' is no path inside",
        ),
        ("load_model, 'm', '{}', {'1/model.py': b''}", "load model: {}unrecognized load parameter '1/model.py'."),
        ("load_model, 'm', 'x' * 20_000_000", "load model: {}the configuration, or the list of files, is too long: "),
        ("load_model, 'm', '{}', {'file:' + 'x' * 2_000_000: b''}", "load model: {}failed to load 'm', failed to poll"),
        (
            "is_model_ready, 'laboratory', 'x'",
            "check model readiness: {}failed to get model version from specified version string 'x'",
        ),
    ],
)
def test_what_cannot_be_done(ask, call, said):
    heard = ask(f"said = failure(pb_utils.{call}).replace('laboratory_0_1', 'laboratory_0_0')")
    expected = said.format("Failed to process the request for model 'laboratory_0_0', message: ")
    assert heard.startswith(f"Failed to {expected}")
    assert ask("said = failure(pb_utils.unload_model, 'gone')") == "None"


@pytest.mark.spec("pb-O02")
def test_a_model_that_waits_for_a_load_is_not_frozen(server, ask, repository):
    gate = Gate(repository / "slow", "initialize")
    gate.close()
    code = """
        stop, beats = threading.Event(), []

        def beat():
            while not stop.wait(0.01):
                beats.append(time.monotonic())
                pb_utils.Logger.log_info(f"beat {len(beats)}")

        thread = threading.Thread(target=beat)
        thread.start()
        began = time.monotonic()
        pb_utils.load_model("slow")
        ended = time.monotonic()
        stop.set()
        thread.join()
        said = sum(began < at < ended for at in beats)
    """
    with gate.holding(lambda: ask(code)) as asked:
        # Its threads run, what they log arrives, the other instance serves and can ask, while this one waits.
        begun = server.output.count("beat ")
        wait_until(lambda: server.output.count("beat ") >= begun + 20, "the model is frozen")
        assert ask("said = [pb_utils.is_model_ready('laboratory'), pb_utils.is_model_ready('slow')]") == [True, False]
        assert not asked.done()
    assert asked.result() >= 20
    assert versions(server, "slow") == ["1"]


@pytest.fixture
def open_directory():
    """Where models of any user may write."""
    directory = Path(tempfile.mkdtemp(prefix="pybackend-test-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def test_a_load_goes_on_when_its_asker_dies(server, repository, tmp_path, open_directory):
    gate = Gate(open_directory, "initialize")
    code = SLOW_TO_LOAD.replace('args["model_repository"]', repr(str(open_directory)))
    load = f"""
        with open({str(tmp_path / "asker")!r}, "w") as file:
            file.write(str(os.getpid()))
        code = {PREAMBLE + code!r} + "#" * 5_000_000
        pb_utils.load_model("new", {json.dumps(TENSORS)!r}, {{"file:1/model.py": code.encode()}})
    """
    with gate.holding(lambda: laboratory(server)(load)) as asked:
        os.kill(int((tmp_path / "asker").read_text()), signal.SIGKILL)
        assert asked.result().status == 500
    server.wait_until("/v2/models/new/ready", 200)
    server.wait_until("/v2/models/laboratory/ready", 200)
    assert not server_tracebacks(server.output)


def test_a_model_that_reloads_itself(tmp_path):
    """It has its answer before its successor serves alone, and nobody is refused meanwhile."""
    write_laboratory(tmp_path)
    path = tmp_path / "laboratory/1/model.py"
    with serving(tmp_path, flags=EXPLICIT) as server:
        ask = asking(server)
        path.write_text(path.read_text() + "\nNEW = True\n")
        assert ask("said = [failure(pb_utils.load_model, 'laboratory'), 'NEW' in globals()]") == ["None", False]
        assert ask("said = ['NEW' in globals(), pb_utils.is_model_ready('laboratory')]") == [True, True]
        # One that unloads itself is told to end when its request is answered.
        said = ask("said = [pb_utils.unload_model('laboratory'), pb_utils.is_model_ready('laboratory')]")
        assert said == [None, False]
        assert versions(server, "laboratory") == 404


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("version", ["", "/versions/3"])
def test_a_request_whose_body_arrives_during_a_reload(server, ask, repository, size, version):
    """The version for which it began is gone when it ends."""
    ask("said = pb_utils.load_model('target')")
    body, headers = infer_body({"IN": np.arange(size, dtype=np.float32)})
    message = post(f"/v2/models/target{version}/infer", body, headers)
    with connected(server.port) as connection:
        connection.send(message)  # heads are remembered
        assert connection.reply().status == 200
        connection.send(message[:-20])
        # What it does not see is that its first bytes have been read.
        assert server.get("/v2/models/target").status == 200
        (repository / "target/labels.txt").write_text(f"{size}{version}")
        before = server.output.count("successfully unloaded 'target' version 3")
        ask("said = pb_utils.load_model('target')")
        server.wait_for(f"(?s)(successfully unloaded 'target' version 3.*){{{before + 1}}}")
        connection.send(message[-20:])
        reply = connection.reply()
    assert reply.status == 200, reply.body
    assert answer_of(reply)["OUT"].tolist() == list(range(size))


@pytest.fixture
def server_of_one_load(tmp_path):
    write_laboratory(tmp_path)
    write_models(tmp_path)
    with serving(tmp_path, flags=(*EXPLICIT, "--model-load-thread-count=1")) as server:
        yield server


def test_models_that_load_others_in_initialize(server_of_one_load):
    server = server_of_one_load
    ask = asking(server)
    heard = ask("said = [pb_utils.load_model(name) for name in ('first', 'self')]")
    assert heard == [None, None]

    def heard_by(model):
        return json.loads(infer(server, model, {"IN": np.zeros(1, np.float32)})["OUT"][0])

    assert heard_by("first") == {"load_model": "None", "is_model_ready": "True"}
    second = heard_by("second")
    assert second["load_model"].startswith(
        "Failed to load model: Failed to process the request for model 'second_0', message: model 'second' would wait for "
        "itself: "
    )
    assert "(second -> first -> second)" in second["load_model"]
    assert "(second -> first -> second)" in second["unload_model"]
    assert second["is_model_ready"] == "False"
    assert "(self -> self)" in heard_by("self")["load_model"]
    assert "(self -> self)" in heard_by("self")["unload_model"]


def test_models_of_the_start_cannot_load_others_in_initialize(tmp_path):
    write_models(tmp_path)
    with serving(tmp_path, flags=("--model-control-mode=explicit", "--load-model=first")) as server:
        heard = json.loads(infer(server, "first", {"IN": np.zeros(1, np.float32)})["OUT"][0])
    assert heard["load_model"].startswith(
        "Failed to load model: Failed to process the request for model 'first_0', message: the server is still starting"
    )
    assert heard["is_model_ready"] == "False"


def test_where_models_cannot_be_controlled(server, ask):
    """At import, in auto_complete_config and in finalize."""
    ask("said = pb_utils.load_model('forbidden')")
    (heard,) = infer(server, "forbidden", {"IN": np.array([b"x"], object)})["OUT"]
    refused = "model control is not available. It is available from 'initialize' until 'finalize'."
    for place in ("import", "auto_complete_config"):
        texts = eval(heard)[place]
        assert len(texts) == 3
        for text, what in zip(texts, ("load model", "unload model", "check model readiness"), strict=True):
            assert text == f"Failed to {what}: {refused}"
    ask("said = pb_utils.unload_model('forbidden')")
    for what in ("load model", "unload model", "check model readiness"):
        server.wait_for(f"finalize heard: Failed to {what}: {refused}")


def test_a_server_that_does_not_allow_it(tmp_path):
    write_laboratory(tmp_path)
    with serving(tmp_path) as server:
        ask = asking(server)
        for call, what in (("load_model", "load model"), ("unload_model", "unload model")):
            assert ask(f"said = failure(pb_utils.{call}, 'laboratory')").startswith(
                f"Failed to {what}: Failed to process the request for model 'laboratory_0_0', message: explicit model "
                "load / unload is not allowed if polling is enabled"
            )
        assert ask("said = pb_utils.is_model_ready('laboratory')") is True
