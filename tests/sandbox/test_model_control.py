"""Models that load models: what they bring along is never freer than they are, and who may bring anything is the
operator's word."""

import json
import os

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, arena
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

FLAGS = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
OVERRIDES = "--allow-model-overrides"

TENSORS = {
    "backend": "python",
    "input": [{"name": "ASKED", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
    "instance_group": [{"kind": "KIND_CPU"}],
}

BROUGHT = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        said = json.dumps({"uid": os.getuid(), "capabilities": int(status["CapEff"], 16), "directory": self.directory})
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([said], dtype=object))]) for _ in requests]
"""

OF_ANOTHER, ANOTHER_UID = ("victim", "strict", "named"), 54_322

MODELS = {
    "victim": {"SANDBOX": "standard"},
    "strict": {"SANDBOX": "strict"},
    "named": {"SANDBOX": "strict", "SANDBOX_MODEL_CONTROL": "victim, other"},
    "standard": {"SANDBOX": "standard"},
    "narrow": {"SANDBOX": "standard", "SANDBOX_NETWORK": "no", "SANDBOX_MODEL_CONTROL": "new,victim"},
    "off": {"SANDBOX": "off"},
}


def configuration(**values: str) -> str:
    return json.dumps({**TENSORS, "parameters": {key: {"string_value": value} for key, value in values.items()}})


class Control:
    """Models of a server that call ``pb_utils``."""

    def __init__(self, host):
        self.host = host
        self.repository = host.context["other_model"].removesuffix("/victim")

    def call(self, model, function, *arguments, files=None):
        """What comes of a call: "None" or the text of what it raises."""
        self.host.context["call"] = [function, arguments, files]
        succeeded, text = self.host.ask(model, ["call_model_control"])["results"]["call_model_control"]
        assert succeeded, text
        return text

    def sandbox(self, model):
        reply = self.host.server.get(f"/v2/models/{model}/sandbox")
        assert reply.status == 200, reply
        return reply.json

    def level(self, model):
        return self.sandbox(model)["level"]


@pytest.fixture(scope="module", params=["root", *thorough("user")])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def usual(kind):
    """A server whose operator allows no overrides; some models have another author."""
    with arena(kind, *FLAGS, models=MODELS) as host:
        host.server.wait_ready()
        control = Control(host)
        for name in OF_ANOTHER if IS_ROOT else ():
            os.chown(f"{control.repository}/{name}", ANOTHER_UID, ANOTHER_UID)
        yield control


@pytest.fixture(scope="module")
def allowing(kind):
    with arena(kind, *FLAGS, OVERRIDES, models=MODELS) as host:
        host.server.wait_ready()
        yield Control(host)


NEW_CODE = {"file:1/model.py": BROUGHT}


@pytest.mark.parametrize("function", ["load_model", "unload_model"])
def test_a_strict_model_controls_only_what_its_configuration_names(usual, function):
    for target in ("victim", "strict", "no such model"):
        said = usual.call("strict", function, target)
        assert f"model 'strict' may not load or unload model '{target}': at level 'strict' a model loads" in said
        assert "SANDBOX_MODEL_CONTROL" in said
    assert "may not load or unload model 'standard'" in usual.call("named", function, "standard")
    assert usual.call("strict", "is_model_ready", "victim") == "True"
    pid = usual.host.ask("victim")["pid"]
    assert usual.call("named", "unload_model", "victim") == "None"
    assert usual.call("named", "load_model", "victim") == "None"
    assert usual.host.ask("victim")["pid"] != pid


@pytest.mark.parametrize("target", ["new", *OF_ANOTHER])
@pytest.mark.parametrize("files", [NEW_CODE, None], ids=["files", "configuration"])
def test_nobody_brings_anything_for_another_author_without_the_operators_word(usual, target, files):
    if target != "new" and not IS_ROOT:
        pytest.skip("only root can give a directory to another user")
    pid = usual.host.ask("victim")["pid"]
    text = configuration(SANDBOX="off")
    said = usual.call("standard", "load_model", target, text, files=files)
    assert f"model 'standard' may not give a configuration or files for model '{target}'" in said
    assert OVERRIDES in said
    if target == "victim":
        said = usual.call("named", "load_model", target, text, files=files)
        assert "at level 'strict' a model loads others only as the repository has them" in said
    assert usual.host.ask("victim")["pid"] == pid


def test_a_model_brings_what_it_likes_for_its_own_authors_models_and_no_more_rights(usual):
    for files in (None, NEW_CODE):
        assert usual.call("standard", "load_model", "narrow", configuration(), files=files) == "None"
        assert usual.level("narrow") == "standard"
        said = usual.call("standard", "load_model", "narrow", configuration(SANDBOX="off"), files=files)
        assert "a model loaded with a configuration from model 'standard' runs at 'standard' or stricter" in said
    assert "uid" in usual.host.ask("narrow")
    assert usual.call("standard", "load_model", "narrow") == "None"
    said = usual.call("named", "load_model", "other", configuration())
    assert "at level 'strict' a model loads others only as the repository has them" in said


def test_a_standard_model_controls_the_repositorys_models_by_name(usual):
    pid = usual.host.ask("victim")["pid"]
    assert usual.call("standard", "unload_model", "victim") == "None"
    assert usual.call("standard", "load_model", "victim") == "None"
    assert usual.host.ask("victim")["pid"] != pid
    assert usual.call("standard", "load_model", "off") == "None"
    assert usual.level("off") == "off", "the operator has put it there"


def test_a_model_that_nothing_confines_brings_what_it_likes(usual):
    assert usual.call("off", "load_model", "new", configuration(SANDBOX="off"), files=NEW_CODE) == "None"
    assert usual.level("new") == "off"
    assert usual.call("off", "unload_model", "new") == "None"


@pytest.mark.parametrize("caller", ["strict", "named"])
def test_a_strict_model_brings_nothing_even_where_others_may(allowing, caller):
    said = allowing.call(caller, "load_model", "victim", configuration(), files=NEW_CODE)
    assert "may not" in said
    assert allowing.level("victim") == "standard"


WIDER = {
    "SANDBOX": "off",
    "SANDBOX_UID": "1",
    "SANDBOX_READ": "$HOME/.ssh",
    "SANDBOX_WRITE": "/etc",
    "SANDBOX_MEMORY_MB": "999999999",
    "SANDBOX_PROCESSES": "9999999",
    "EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env.yml",
}


@pytest.mark.parametrize("parameter", WIDER)
def test_what_is_brought_is_not_freer_than_who_brings_it(allowing, parameter):
    files = {**NEW_CODE, "file:env.yml": "numpy"}
    value = WIDER[parameter].replace("$HOME", allowing.host.context["home"])
    said = allowing.call("standard", "load_model", "new", configuration(**{parameter: value}), files=files)
    assert parameter in said
    assert "load failed for model 'new'" in said
    assert allowing.host.server.get("/v2/models/new/ready").status == 400


def test_files_of_others_are_not_reached_by_what_is_brought(allowing):
    victim = allowing.host.context["other_model"]
    for parameter in ("SANDBOX_READ", "SANDBOX_WRITE", "EXECUTION_ENV_PATH"):
        said = allowing.call("standard", "load_model", "new", configuration(**{parameter: victim}), files=NEW_CODE)
        assert parameter in said
        assert "load failed" in said
    labels = json.loads(configuration())
    labels["output"] = [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1], "label_filename": "1/model.py"}]
    said = allowing.call("standard", "load_model", "victim", json.dumps(labels))
    assert "'label_filename' is '1/model.py'" in said
    said = allowing.call("standard", "load_model", "victim", configuration(EXECUTION_ENV_PATH="/tmp/attacker"))
    assert "'EXECUTION_ENV_PATH' is '/tmp/attacker'" in said
    assert allowing.level("victim") == "standard"


@pytest.mark.parametrize("target", ["new", "victim"])
def test_what_is_brought_is_as_confined_and_leaves_with_the_next_load(allowing, target, kind):
    assert allowing.call("narrow", "load_model", target, configuration(), files=NEW_CODE) == "None"
    assert allowing.level(target) == "standard"
    said = allowing.host.ask(target)
    assert said["capabilities"] == 0
    assert said["uid"] != 0
    said = allowing.call("narrow", "load_model", target, configuration(SANDBOX_NETWORK="yes"), files=NEW_CODE)
    assert "SANDBOX_NETWORK would give it more than model 'narrow'" in said
    assert "may not load or unload model 'off'" in allowing.call("narrow", "load_model", "off")
    if target == "victim":
        assert allowing.call("standard", "load_model", "victim") == "None"
        assert "results" in allowing.host.ask("victim")
    else:
        assert allowing.call("narrow", "unload_model", "new") == "None"


def test_a_configuration_that_its_own_model_has_rewritten_gives_it_no_more(usual, kind):
    """Where processes share the server's user they may write their own directory, the configuration included."""
    path = f"{usual.repository}/standard/config.pbtxt"
    with open(path) as file:
        written = file.read()
    usual.host.context["rewrite"] = [path, written.replace('"standard"', '"off"')]
    said = usual.host.ask("standard", ["rewrite"])
    succeeded, text = said["results"]["rewrite"]
    if kind == "root":
        assert not succeeded, (said, usual.sandbox("standard"), usual.host.server.output)
        return
    assert succeeded, text
    try:
        for caller in ("standard", "victim"):  # itself, or another one that it has asked
            said = usual.call(caller, "load_model", "standard")
            assert "parameters SANDBOX is 'off'" in said
            assert usual.level("standard") == "standard"
    finally:
        with open(path, "w") as file:
            file.write(written)


def test_at_a_floor_no_model_gives_itself_control(kind):
    models = {"victim": {"SANDBOX": "strict"}, "caller": {}, "named": {"SANDBOX_MODEL_CONTROL": "victim"}}
    with arena(kind, *FLAGS, OVERRIDES, "--sandbox-floor=strict", models=models) as host:
        host.server.wait_for(
            "parameters SANDBOX_MODEL_CONTROL would let it have more than the server's --sandbox-floor"
        )
        control = Control(host)
        host.server.wait_until("/v2/models/caller/ready", 200)
        host.server.wait_until("/v2/models/victim/ready", 200)
        pid = host.ask("victim")["pid"]
        for text, files in (("", None), (configuration(), None), (configuration(), NEW_CODE)):
            assert "may not load or unload" in control.call("caller", "load_model", "victim", text, files=files)
        assert "may not load or unload" in control.call("caller", "unload_model", "victim")
        assert host.ask("victim")["pid"] == pid
