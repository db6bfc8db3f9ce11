"""``auto_complete_config``: when it is called, what of its result counts, and every way in which it can go wrong."""

import json
import time

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving

HEAD = "import os\n"
COUNTING = """
import os
import sys

DIRECTORY = os.path.dirname(__file__)


def note(event):
    with open(os.path.join(DIRECTORY, "events"), "a") as events:
        print(event, file=events)


note("import")


class TritonPythonModel:
    def __init__(self):
        note("instance")

    @staticmethod
    def auto_complete_config(config):
        note(f"complete {type(config).__module__.split('.')[0]} {pb_utils.get_model_dir() == DIRECTORY}")
        pb_utils.Logger.log_info("a line while completing")
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        return config

    def initialize(self, args):
        note("initialize")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
WRITTEN = f'backend: "python"\ninput [ {tensors(IN=("TYPE_FP32", [2]))} ]\n'
COMPLETE = f"{WRITTEN} output [ {tensors(OUT=('TYPE_FP32', [2]))} ]\n"

ALL_SETTERS = """
class TritonPythonModel:
    execute = list

    @classmethod
    def auto_complete_config(cls, config):
        assert config.as_dict()["name"] == "all_setters"
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_input({"name": "EXTRA", "data_type": "TYPE_STRING", "dims": [-1], "optional": True})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_model_transaction_policy({"decoupled": False})
        return config
"""
WHITELIST = """
class TritonPythonModel:
    execute = list

    @staticmethod
    def auto_complete_config(config):
        document = config.as_dict()
        document["instance_group"] = [{"count": 7, "kind": "KIND_MODEL"}]
        document["parameters"] = {"added": {"string_value": "x"}}
        document["version_policy"] = {"all": {}}
        document["name"] = "another"
        document["default_model_filename"] = "another.py"
        document["metric_tags"] = {"a": "b"}
        document["max_batch_size"] = 2
        document["output"] = [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]
        return config
"""

IN = '{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}'
WHERE = "in auto-complete-config function for model '{model}'"
REFUSED = {
    "smaller_batch": (
        "config.set_max_batch_size(2)",
        "max_batch_size: 4",
        "ValueError: configuration specified max_batch_size 4, but in auto-complete-config function for model '{model}' "
        "specified max_batch_size 2",
    ),
    "other_scheduler": (
        'config.as_dict()["sequence_batching"] = {}; config.set_dynamic_batching()',
        "max_batch_size: 4",
        "ValueError: Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function "
        "for model '{model}' tries to set scheduling_choice as 'dynamic_batching'",
    ),
    "input_property": (
        'config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2], "shape": [2]})',
        "",
        f"ValueError: input 'X' {WHERE} contains property other than 'name', 'data_type', 'dims' and 'optional'.",
    ),
    "output_property": (
        'config.add_output({"name": "X", "data_type": "TYPE_FP32", "dims": [2], "optional": True})',
        "",
        f"ValueError: output 'X' {WHERE} contains property other than 'name', 'data_type' and 'dims'.",
    ),
    "input_without_name": (
        'config.add_input({"data_type": "TYPE_FP32", "dims": [2]})',
        "",
        f"ValueError: input {WHERE} is missing 'name' property.",
    ),
    "input_without_type": (
        'config.add_input({"name": "X", "dims": [2]})',
        "",
        f"ValueError: input 'X' {WHERE} is missing 'data_type' property.",
    ),
    "input_without_dims": (
        'config.add_input({"name": "X", "data_type": "TYPE_FP32"})',
        "",
        f"ValueError: input 'X' {WHERE} is missing 'dims' property.",
    ),
    "output_without_name": (
        'config.add_output({"data_type": "TYPE_FP32", "dims": [2]})',
        "",
        f"ValueError: output {WHERE} is missing 'name' property.",
    ),
    "output_without_type": (
        'config.add_output({"name": "X", "dims": [2]})',
        "",
        f"ValueError: output 'X' {WHERE} is missing 'data_type' property.",
    ),
    "output_without_dims": (
        'config.add_output({"name": "X", "data_type": "TYPE_FP32"})',
        "",
        f"ValueError: output 'X' {WHERE} is missing 'dims' property.",
    ),
    "input_type": (
        'config.add_input({"name": "IN", "data_type": "TYPE_INT8", "dims": [2]})',
        "",
        "ValueError: unable to load model '{model}', configuration expects datatype TYPE_FP32 for input 'IN', model "
        "provides TYPE_INT8",
    ),
    "output_type": (
        'config.add_output({"name": "OUT", "data_type": "TYPE_INT8", "dims": [2]})',
        "",
        "ValueError: unable to load model '{model}', configuration expects datatype TYPE_FP32 for output 'OUT', model "
        "provides TYPE_INT8",
    ),
    "input_dims": (
        'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [3]})',
        "",
        "ValueError: model '{model}', tensor 'IN': the model expects dims [3] but the model configuration specifies "
        "dims [2]",
    ),
    "output_dims": (
        'config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": (2,)})',
        "",
        "ValueError: model '{model}', tensor 'OUT': the model expects dims (2,) but the model configuration specifies "
        "dims [2]",
    ),
    "input_optional": (
        'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2], "optional": True})',
        "",
        "ValueError: model '{model}', tensor 'IN': the model expects optional True but the model configuration "
        "specifies optional False",
    ),
    "policy_property": (
        'config.set_model_transaction_policy({"decoupled": False, "coupled": True})',
        "",
        f"ValueError: model transaction property {WHERE} contains property other than 'decoupled'.",
    ),
    "decoupled": (
        'config.set_model_transaction_policy({"decoupled": True})',
        "model_transaction_policy { decoupled: false }",
        "ValueError: trying to change decoupled property in auto-complete-config for model '{model}', which is already "
        "set to 'False'.",
    ),
    "returns_none": (
        "return None",
        "",
        "Internal: auto_complete_config function in model '{model}' must return a valid pb.ModelConfig object.",
    ),
    "returns_dict": (
        "return config.as_dict()",
        "",
        "Internal: auto_complete_config function in model '{model}' must return a valid pb.ModelConfig object.",
    ),
    "another_scheduler": (
        'config.as_dict()["sequence_batching"] = {}',
        "max_batch_size: 4 dynamic_batching { }",
        "Cannot update scheduling choice from dynamic_batching to sequence_batching when auto-completing.",
    ),
    "no_json": (
        'config.as_dict()["max_batch_size"] = {1, 2}',
        "",
        "TypeError: Object of type set is not JSON serializable",
    ),
    "wrong_type": ('config.as_dict()["max_batch_size"] = "many"', "", "max_batch_size"),
    "no_input_list": ('config.as_dict()["input"] = 5', "", "input"),
    "raises": (
        "raise KeyError('a key')",
        "",
        "Internal: KeyError: 'a key'\n\nAt:\n  {directory}/1/model.py(12): auto_complete_config\n",
    ),
    "calls_a_model": (
        'pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="x").exec()',
        "",
        "TritonModelException: BLS is only supported during the 'execute' function.",
    ),
    "controls_models": (
        'pb_utils.load_model("x")',
        "",
        "TritonModelException: Failed to load model: model control is not available.",
    ),
    "makes_metrics": (
        'pb_utils.MetricFamily("n", "d", pb_utils.MetricFamily.COUNTER)',
        "",
        "TritonModelException: Error when creating MetricFamily: ",
    ),
    "exits": ("os._exit(3)", "", "Stub process '{model}_0' is not healthy. The process exited with status 3."),
    "crashes": (
        "import ctypes; ctypes.string_at(0)",
        "",
        "Stub process '{model}_0' is not healthy. The process was killed by signal 11 (SIGSEGV).",
    ),
    "quits": ("import sys; sys.exit('enough')", "", "SystemExit: enough"),
}
"""Statements of an ``auto_complete_config``, what is added to the configuration, and how the load's error reads."""

REFUSED_AT_IMPORT = {
    "exits_at_import": ("os._exit(3)", "Stub process '{model}_0' is not healthy. The process exited with status 3."),
}


def row_of(model):
    """The row of the feature table that a refused model is about."""
    if model.startswith("returns_"):
        return "pb-A04"
    return "pb-A06" if model in {"exits", "crashes"} else "pb-A03"


def completing(statement):
    return f"""
import os


class TritonPythonModel:
    execute = list

    @staticmethod
    def auto_complete_config(config):
        {statement}
        return config
"""


@served()
def good(repository):
    """A server whose models complete their configurations as they should."""
    write_model(repository, "counting", COUNTING, WRITTEN + "instance_group { count: 3 kind: KIND_CPU }")
    write_model(repository, "all_setters", ALL_SETTERS, 'backend: "python" input { name: "IN" }')
    write_model(repository, "edited", WHITELIST, WRITTEN + "instance_group { kind: KIND_CPU }")


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A server on which every model of the tables has failed to load, by the time it has printed its summary."""
    repository = tmp_path_factory.mktemp("bad")
    for name, (statement, extra, _) in REFUSED.items():
        write_model(repository, name, completing(statement), COMPLETE + extra)
    for name, (statement, _) in REFUSED_AT_IMPORT.items():
        write_model(repository, name, f"import os\n{statement}", COMPLETE)
    began_s = time.monotonic()
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("models are ready in")
        server.load_s = time.monotonic() - began_s
        server.repository = repository
        yield server


def reason(server, model):
    """Why a model failed to load, as the log has it."""
    return json.loads(server.wait_for(rf"] (\"failed to load '{model}' version 1: [^\n]*\")\n")[1]).partition(": ")[2]


@pytest.mark.spec("pb-A01")
def test_called_once_per_load_on_the_class(good):
    config = good.get("/v2/models/counting/config").json
    assert [output["name"] for output in config["output"]] == ["OUT"]
    assert infer(good, "counting", {"IN": np.ones(2, np.float32)})["OUT"].tolist() == [1, 1]
    assert "a line while completing" in good.output
    events = (good.repository / "counting/1/events").read_text().splitlines()
    assert [event for event in events if event.startswith("complete")] == ["complete pybackend_sdk True"]
    assert events[:2] == ["import", "complete pybackend_sdk True"]
    # The first instance goes on where the configuration was completed: no process, and no import, is thrown away.
    assert sorted(events[2:]) == ["import"] * 2 + ["initialize"] * 3 + ["instance"] * 3


@pytest.mark.spec("pb-A02")
def test_not_called_when_disabled(tmp_path):
    directory = write_model(tmp_path, "counting", COUNTING, COMPLETE)
    with serving(tmp_path, flags=("--disable-auto-complete-config",)) as server:
        assert infer(server, "counting", {"IN": np.ones(2, np.float32)})["OUT"].tolist() == [1, 1]
    assert (directory / "1/events").read_text().split() == ["import", "instance", "initialize"]


@pytest.mark.spec("pb-A03")
def test_every_setter(good):
    config = good.get("/v2/models/all_setters/config").json
    metadata = good.get("/v2/models/all_setters").json
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert [(tensor["name"], tensor["optional"]) for tensor in config["input"]] == [("IN", False), ("EXTRA", True)]
    assert metadata["inputs"] == [
        {"name": "IN", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "EXTRA", "datatype": "BYTES", "shape": [-1, -1]},
    ]
    assert metadata["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [-1, 2]}]


@pytest.mark.parametrize("model", [pytest.param(name, marks=pytest.mark.spec(row_of(name))) for name in REFUSED])
def test_refused(bad, model):
    expected = REFUSED[model][2].format(model=model, directory=bad.repository / model)
    told = reason(bad, model)
    assert expected in told
    assert told.startswith(("Internal: ", "Invalid argument: "))
    assert "pybackend_stub" not in told
    assert bad.get(f"/v2/models/{model}/ready").status == 400


@pytest.mark.spec("pb-A06")
@pytest.mark.parametrize("model", REFUSED_AT_IMPORT)
def test_death_at_import(bad, model):
    assert REFUSED_AT_IMPORT[model][1].format(model=model) in reason(bad, model)
    assert bad.load_s < 50, "some load waited for a process that was dead"


def test_nothing_of_a_failed_load_stays(bad):
    assert bad.stub_pids() == []
    assert bad.get("/v2/health/live").status == 200


@pytest.mark.spec("pb-A05")
def test_only_some_fields_count(good):
    config = good.get("/v2/models/edited/config").json
    assert (config["name"], config["default_model_filename"]) == ("edited", "model.py")
    (group,) = config["instance_group"]
    assert (group["kind"], group["count"]) == ("KIND_CPU", 1)
    assert (config["parameters"], config["metric_tags"]) == ({}, {})
    assert "all" not in config["version_policy"]
    assert config["max_batch_size"] == 2
    assert config["output"][0]["name"] == "OUT"
