"""``is_ready``: what a model says about itself, and who heeds it."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.ensembles import write_ensemble
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.log_lines import log_lines
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving
from tests.support.streams import DECOUPLED, ONE

MODEL = """
import asyncio
import os
import threading
import time


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        self.instance = args["model_instance_name"]
        self.inside = threading.Lock()

    def execute(self, requests):
        {execute}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    {is_ready}

    def mark(self, what):
        with open(os.path.join(self.directory, what), "a") as marks:
            marks.write("x")

    def exists(self, what):
        return os.path.exists(os.path.join(self.directory, what))
"""
NOT_READY = "Model '{}_0_0' is not ready (user-defined check failed)."
MODELS = {
    "yes": "def is_ready(self): return True",
    "no": "def is_ready(self): return False",
    "raises": "def is_ready(self): raise ValueError('not yet')",
    "exits": "def is_ready(self): import sys; sys.exit(1)",
    "one": "def is_ready(self): return 1",
    "none": "def is_ready(self): pass",
    "numpy": "def is_ready(self): return np.bool_(True)",
    "text": "def is_ready(self): return 'yes'",
    "argument": "def is_ready(self, what): return True",
    "attribute": "is_ready = True",
    "static": "is_ready = staticmethod(lambda: True)",
    "async_yes": "async def is_ready(self): await asyncio.sleep(0.01); return True",
    "async_no": "async def is_ready(self): await asyncio.sleep(0.01); return False",
    "async_raises": "async def is_ready(self): raise ValueError('not yet')",
    "async_one": "async def is_ready(self): return 1",
}
"""Definitions of ``is_ready`` by the models' names; those for which it is true are in :data:`READY`."""

READY = {"yes", "static", "async_yes"}
REASONS = {
    "no": NOT_READY.format("no"),
    "async_no": NOT_READY.format("async_no"),
    "raises": "ValueError: not yet\n\nAt:\n",
    "async_raises": "ValueError: not yet\n\nAt:\n",
    "exits": "SystemExit: 1",
    "one": "is_ready() must return a boolean value",
    "none": "is_ready() must return a boolean value",
    "numpy": "is_ready() must return a boolean value",
    "text": "is_ready() must return a boolean value",
    "async_one": "is_ready() must return a boolean value",
    "argument": "TypeError: ",
    "attribute": "TypeError: ",
}
CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_INT32", [-1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [-1]))} ]
"""
BY_FILE = "def is_ready(self): self.mark('asked'); return self.exists('ready')"
SLOW = """
    def is_ready(self):
        assert self.inside.acquire(blocking=False), "two checks at once"
        self.mark("asked")
        while not self.exists("answer"):
            time.sleep(0.01)
        self.inside.release()
        return True
"""
DEFINED_LATER = "type(self).is_ready = self.is_ready = lambda *args: False"
CALLER = """
import json


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        call = pb_utils.InferenceRequest(
            model_name=json.loads(request.parameters())["target"], inputs=request.inputs(), requested_output_names=[]
        )
        if "decoupled" in json.loads(request.parameters()):
            responses = list(call.exec(decoupled=True))
        else:
            responses = [call.exec()]
        return [pb_utils.InferenceResponse(error=r.error()) if r.has_error() else r for r in responses[:1]]
"""
STREAMING = """
import os


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def is_ready(self):
        return os.path.exists(os.path.join(self.directory, "ready"))
"""


@served(flags=("--strict-readiness=false",))
def server(repository):
    definitions = {
        **MODELS,
        "without": "",
        "target": BY_FILE,
        "slow": SLOW.strip(),
        "endless": SLOW.strip(),
        "busy": "def is_ready(self): return True",
    }
    for name, is_ready in definitions.items():
        execute = {"without": DEFINED_LATER, "busy": "while not self.exists('done'): self.mark('busy')"}.get(
            name, "pass"
        )
        write_model(repository, name, MODEL.format(is_ready=is_ready, execute=execute), f"{CONFIG}\n{ONE}")
    pair = "def is_ready(self): self.mark('asked_' + self.instance); return self.exists(self.instance)"
    two = "instance_group { count: 2 kind: KIND_CPU }"
    write_model(repository, "pair", MODEL.format(is_ready=pair, execute="pass"), f"{CONFIG}\n{two}")
    write_model(repository, "caller", CALLER, f"{CONFIG}\n{two}")
    write_model(repository, "streaming", STREAMING, f"{CONFIG}\n{DECOUPLED}\n{ONE}")


@served(flags=("--strict-readiness=false",))
def unasked(repository):
    for name in ("yes", "raises", "none", "no"):
        write_model(repository, name, MODEL.format(is_ready=MODELS[name], execute="pass"), f"{CONFIG}\n{ONE}")
    write_model(repository, "stuck", MODEL.format(is_ready=SLOW.strip(), execute="pass"), f"{CONFIG}\n{ONE}")
    tensor = ("TYPE_INT32", [-1])
    write_ensemble(
        repository, "around", [("no", {"IN": "IN"}, {"OUT": "OUT"})], tensors(IN=tensor), tensors(OUT=tensor)
    )


def ready(server, model):
    """Ask once."""
    reply = server.get(f"/v2/models/{model}/ready")
    assert reply.status in {200, 400}
    if reply.status == 400:
        assert reply.json == {"name": model, "ready": False, "error": "Model version not ready"}
    else:
        assert reply.json == {"name": model, "ready": True}
    return reply.status == 200


def reasons(server, model):
    """What the log says about why a model is not ready."""
    start = f"Model '{model}' version 1 is not ready: "
    texts = [line.text for line in log_lines(server.output) if line.text.startswith(start)]
    return [text.removeprefix(start) for text in texts]


def ask(server, model, **parameters):
    return infer(server, model, {"IN": np.array([5], np.int32)}, parameters=parameters)


@pytest.mark.spec("pb-Y01")
@pytest.mark.parametrize("model", MODELS)
def test_what_is_ready_may_say(server, model):
    for _ in range(2):
        assert ready(server, model) is (model in READY)
        reply = server.get(f"/v2/models/{model}/versions/1/ready")
        assert (reply.status == 200) is (model in READY)
    if model in READY:
        assert reasons(server, model) == []
    else:
        server.wait_for(f"Model '{model}' version 1 is not ready")
        (reason,) = reasons(server, model)  # of four queries
        assert reason.startswith(REASONS[model])
        (line,) = [line for line in log_lines(server.output) if line.text.startswith(f"Model '{model}' version 1 ")]
        assert line.letter == "W"


@pytest.mark.spec("pb-Y03")
@pytest.mark.parametrize("model", MODELS)
def test_requests_are_served_whatever_it_says(server, model):
    assert ask(server, model)["OUT"].tolist() == [5]
    assert ready(server, model) is (model in READY)


@pytest.mark.spec("pb-Y01")
def test_a_model_without_is_ready_that_gets_one_later(server):
    """Whether there is one is looked up once, after `initialize`."""
    assert ready(server, "without")
    assert ask(server, "without")["OUT"].tolist() == [5]
    assert ready(server, "without")


@pytest.mark.spec("pb-Y01")
def test_every_instance_is_asked(server):
    directory = server.repository / "pair"
    assert not ready(server, "pair")
    (directory / "pair_0_0").touch()
    assert not ready(server, "pair")
    (directory / "pair_0_1").touch()
    assert ready(server, "pair")
    (directory / "pair_0_0").unlink()
    assert not ready(server, "pair")
    assert [(directory / f"asked_pair_0_{i}").stat().st_size for i in range(2)] == [4, 4]


@pytest.mark.spec("pb-Y01")
def test_asked_while_execute_computes(server):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, "busy")
        wait_until((server.repository / "busy/busy").exists, "the model computes")
        for _ in range(3):
            assert ready(server, "busy")  # else it would not be, after five seconds
        assert not answer.done()
        (server.repository / "busy/done").touch()
        assert answer.result()["OUT"].tolist() == [5]


@pytest.mark.spec("pb-Y02")
def test_queries_at_once_share_one_call(server):
    directory = server.repository / "slow"
    with ThreadPoolExecutor(8) as pool:
        queries = [pool.submit(ready, server, "slow") for _ in range(8)]
        wait_until((directory / "asked").exists, "the model is asked")
        wait_until(lambda: all(query.running() for query in queries), "all ask")
        assert ask(server, "slow")["OUT"].tolist() == [5]
        assert not any(query.done() for query in queries)
        (directory / "answer").touch()
        assert all(query.result() for query in queries)
    asked = (directory / "asked").read_text()
    assert 1 <= len(asked) <= 2, "one that came late may have begun another"
    assert ready(server, "slow")
    assert (directory / "asked").read_text() == f"{asked}x"


@pytest.mark.spec("pb-Y01", "pb-Y02")
def test_a_check_that_takes_too_long(server):
    """After five seconds the answer is no; the call goes on, and who asks next waits for the same one."""
    directory = server.repository / "endless"
    began_s = time.monotonic()
    assert not ready(server, "endless")
    assert time.monotonic() - began_s > 4.9
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(ready, server, "endless")
        assert ask(server, "endless")["OUT"].tolist() == [5]
        assert not second.done()
        (directory / "answer").touch()
        assert second.result()
    assert (directory / "asked").read_text() == "x"
    assert ready(server, "endless")
    assert (directory / "asked").read_text() == "xx"
    assert reasons(server, "endless") == ["Timed out waiting for user-defined is_ready() response"]


@pytest.mark.spec("pb-Y04")
@pytest.mark.parametrize(
    ("target", "options"), [("target", {}), ("target", {"decoupled": True}), ("streaming", {"decoupled": True})]
)
def test_calls_of_other_models_heed_it(server, target, options):
    directory = server.repository / target
    answer = ask(server, "caller", target=target, **options)
    assert answer.status >= 400
    assert f"Failed for execute the inference request. Model '{target}' is not ready." in answer.error
    (directory / "ready").touch()
    assert ask(server, "caller", target=target, **options)["OUT"].tolist() == [5]
    (directory / "ready").unlink()
    assert f"Model '{target}' is not ready." in ask(server, "caller", target=target, **options).error


@pytest.mark.spec("pb-Y04")
def test_each_call_of_another_model_asks(server):
    directory = server.repository / "target"
    (directory / "ready").touch()
    before = (directory / "asked").stat().st_size if (directory / "asked").exists() else 0
    for _ in range(5):
        assert ask(server, "caller", target="target")["OUT"].tolist() == [5]
    assert (directory / "asked").stat().st_size == before + 5
    for _ in range(5):
        assert ask(server, "target")["OUT"].tolist() == [5]
    assert (directory / "asked").stat().st_size == before + 5, "clients' requests ask nobody"
    (directory / "ready").unlink()


def seen(server, model):
    """The state and the reason in the index, and whether the metrics say that it is ready; nobody has sent a probe."""
    index = server.request("POST", "/v2/repository/index", {}).json
    (row,) = [row for row in index if row["name"] == model]
    name = "pybackend_model_ready"
    (sample,) = [
        sample for sample in server.metrics().items() if sample[0].startswith(name) and f'"{model}"' in sample[0]
    ]
    return row["state"], row.get("reason", ""), sample[1]


@pytest.mark.parametrize("model", ["yes", "raises", "none", "no", "around"])
def test_index_and_metrics_say_what_a_probe_would(unasked, model):
    state, reason, is_ready = seen(unasked, model)
    part = "its part 'no' is not ready: " if model == "around" else ""
    if model in READY:
        assert (state, reason, is_ready) == ("READY", "", 1)
    else:
        assert (state, is_ready) == ("UNAVAILABLE", 0)
        assert reason.startswith(part + REASONS["no" if part else model])
        ready_rows = unasked.request("POST", "/v2/repository/index", {"ready": True}).json
        assert model not in [row["name"] for row in ready_rows]
    assert (unasked.get(f"/v2/models/{model}/ready").status == 200) is (state == "READY")


def test_a_check_that_hangs_holds_index_and_metrics_up_once(unasked):
    directory = unasked.repository / "stuck"
    expected = "UNAVAILABLE", "Timed out waiting for user-defined is_ready() response", 0
    for _ in range(20):  # a minute and more if each of them waited
        assert seen(unasked, "stuck") == expected
    assert (directory / "asked").read_text() == "x"
    (directory / "answer").touch()
    wait_until(lambda: seen(unasked, "stuck") == ("READY", "", 1), "its answer counts")
    unasked.wait_for("Model 'stuck' version 1 is ready again")


@pytest.mark.spec("pb-Y01")
def test_strict_readiness_of_the_server(tmp_path):
    directory = write_model(tmp_path, "target", MODEL.format(is_ready=BY_FILE, execute="pass"), f"{CONFIG}\n{ONE}")
    write_model(tmp_path, "yes", MODEL.format(is_ready=MODELS["async_yes"], execute="pass"), f"{CONFIG}\n{ONE}")
    with serving(tmp_path, ready=False) as server:
        server.wait_until("/v2/models/yes/ready", 200)
        server.wait_for("target +\\| 1 ")  # in the table of what was loaded
        assert server.get("/v2/health/ready").status == 400
        assert server.get("/v2/health/live").status == 200
        (directory / "ready").touch()
        server.wait_ready()
        (directory / "ready").unlink()
        assert server.get("/v2/health/ready").status == 400
        assert reasons(server, "target") == 2 * [NOT_READY.format("target")]
        assert server.output.count("Model 'target' version 1 is ready again") == 1
