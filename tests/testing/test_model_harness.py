"""The test harness runs a model in the environment that its configuration names."""

import json
import socket
import subprocess
import sys
import textwrap
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pybackend_testing import (
    FinalizeError,
    HarnessError,
    InferenceFailed,
    InputError,
    LoadError,
    ModelHarness,
    NoResponse,
    OutputError,
    Request,
)
from pybackend_testing.errors import ModelException
from tests.support.debug_adapter import DebugClient, line_of
from tests.support.environments import foreign_minors, packed, tree
from tests.support.gates import wait_until
from tests.support.repositories import tensors, write_model
from tests.support.warm_start import run_command

FLOAT = ("TYPE_FP32", [-1])
IN_OUT = f'backend: "python"\ninput [ {tensors(IN=FLOAT)} ]\noutput [ {tensors(OUT=FLOAT)} ]\n'

MODEL = """
import sys

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("asked_total", "requests", pb_utils.MetricFamily.COUNTER)
        self.count = self.family.Metric({"a": "b"})
        self.ready = True
        pb_utils.Logger.log_warn("Python %d.%d" % sys.version_info[:2])

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.count.increment(1)
            if x.size == 0:
                raise ValueError("nothing to do")
            if x[0] == 666:
                import os
                os._exit(3)
            if x[0] == 7:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no seven", pb_utils.TritonError.INVALID_ARG)))
                continue
            y = np.array(sys.version_info[:2], np.float32) if x[0] == 0 else x * 2
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", y)], parameters={"id": request.request_id()}))
        return responses

    def is_ready(self):
        return self.ready

    def finalize(self):
        pb_utils.Logger.log_info("the end")
"""
STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in range(int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.float32))]))
            else:
                if value == 3:
                    self.kept = sender
                    return
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=[tensor])
            answer = call.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
                continue
            stream = pb_utils.InferenceRequest(model_name="stream", requested_output_names=["OUT"], inputs=[tensor])
            values = [one.output_tensors()[0].as_numpy()[0] for one in stream.exec(decoupled=True) if one.output_tensors()]
            x = np.array([answer.output_tensors()[0].as_numpy()[0], *values], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
        return responses
"""


def config(environment: object, extra: str = "") -> str:
    named = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{environment}" }} }}\n'
    return IN_OUT + named + extra


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory, cache) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "m", MODEL, config(packed()))


@pytest.fixture(scope="module")
def harness(model):
    with ModelHarness(model) as harness:
        yield harness


def test_a_model_runs_on_the_python_of_its_archive(harness):
    assert harness.infer(IN=[0])["OUT"].tolist() == [3, foreign_minors()[0]]
    assert [str(line).partition("] ")[2] for line in harness.logs][:1] == [f"Python 3.{foreign_minors()[0]}"]


def test_requests_and_responses_are_whole(harness):
    results = harness.execute([Request({"IN": [1, 2]}, request_id="a"), {"IN": np.array([7], np.float32)}])
    assert results[0]["OUT"].tolist() == [2, 4]
    assert results[0].parameters == {"id": "a"}
    assert (results[1].error.code().name, results[1].error.message()) == ("INVALID_ARG", "no seven")
    assert harness.infer(IN=np.zeros(200_000, np.float32) + 1)["OUT"].sum() == 400_000


def test_an_exception_of_the_model_has_its_traceback(harness):
    result = harness.infer(IN=[])
    assert "ValueError: nothing to do" in result.error.message()
    assert isinstance(result.exception, ModelException)
    assert 'raise ValueError("nothing to do")' in str(result.exception)
    with pytest.raises(InferenceFailed):
        result["OUT"]


def test_metrics_readiness_and_configuration(harness):
    before = harness.metrics.value("asked_total", a="b")
    harness.infer(IN=[1])
    assert harness.metrics.value("asked_total", a="b") == before + 1
    assert harness.is_ready()
    assert harness.config["input"][0]["name"] == "IN"
    assert harness.instance_name == "m_0"


def test_wrong_inputs_are_refused_before_the_model(harness):
    with pytest.raises(InputError, match="unexpected inference input 'INN' for model 'm'"):
        harness.infer(INN=[1])


def test_the_model_object_is_elsewhere(harness):
    with pytest.raises(
        HarnessError, match=r"the model object of 'm' is in another process, of .*: a test cannot use its 'x'"
    ):
        harness.model.x  # noqa: B018


@pytest.mark.thorough
def test_finalize_runs_and_the_log_survives(model):
    with ModelHarness(model) as harness:
        pass
    assert str(harness.logs[-1]).endswith("the end")


@pytest.mark.thorough
def test_a_process_that_ends_fails_the_request(model):
    harness = ModelHarness(model)
    harness.open()
    with pytest.raises(HarnessError, match=r"the process of 'm_0' in .* has ended: it ended with status 3"):
        harness.infer(IN=[666])
    with pytest.raises(FinalizeError, match="has ended before finalize"):
        harness.close()


@pytest.mark.parametrize("where", ["$$TRITON_MODEL_DIRECTORY/env", "ignored"])
@pytest.mark.thorough
def test_a_directory_and_an_argument(tmp_path, cache, where):
    directory = write_model(tmp_path, "m", MODEL, config(where))
    (directory / "env").symlink_to(tree())
    with ModelHarness(directory, environment=tree() if where == "ignored" else None) as harness:
        assert harness.infer(IN=[0])["OUT"].tolist() == [3, foreign_minors()[0]]


def test_here_is_the_process_of_the_test(model):
    with ModelHarness(model, environment="here") as harness:
        assert harness.infer(IN=[0])["OUT"].tolist() == list(sys.version_info[:2])
        assert harness.model.ready is True


@pytest.mark.thorough
def test_streams(tmp_path, cache):
    directory = write_model(tmp_path, "m", STREAM, config(tree(), "model_transaction_policy { decoupled: true }"))
    with ModelHarness(directory) as harness:
        assert [result["OUT"].item() for result in harness.stream(IN=[3])] == [0, 1, 2]
        stream = harness.stream(IN=[1_000_000])
        next(stream)
        stream.cancel()
        assert len(stream.collect()) < 999_000
        with pytest.raises(
            NoResponse, match=r"waited 0.5 s .*; 4 responses came before. 'execute' has returned, and the"
        ):
            harness.stream(IN=[4], wait_s=0.5).collect()


OVERLAPPING = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    async def execute(self, requests):
        self.count += 1
        while requests[0].request_id() == "0" and self.count < 2:
            await asyncio.sleep(0.001)
        return [pb_utils.InferenceResponse(requests[0].inputs())]
"""
CALLING = """
class TritonPythonModel:
    def execute(self, requests):
        tensors = requests[0].inputs()
        call = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=tensors)
        return [pb_utils.InferenceResponse(call.exec().output_tensors())]
"""


@pytest.mark.parametrize(
    ("code", "output"), [(OVERLAPPING, "IN"), (CALLING, "OUT")], ids=["they overlap", "the model is busy"]
)
@pytest.mark.thorough
def test_executions_may_overlap(tmp_path, cache, code, output):
    """A model that calls another one hands back the executions that it could not begin; they are sent again."""
    named = config(tree()).replace('"OUT"', f'"{output}"')
    model = write_model(tmp_path, "m", code, named)
    parameters = {"ASYNC_EXECUTE_CONCURRENCY": "8"}
    with ModelHarness(model, parameters=parameters, models={"other": lambda x: x}) as harness:
        streams = [harness.stream(IN=[number], request_id=str(number)) for number in range(40)]
        assert [stream.collect()[0][output].item() for stream in streams] == list(range(40))


@pytest.mark.thorough
def test_calls_to_functions_and_to_models_elsewhere(tmp_path, cache):
    stream = write_model(tmp_path, "stream", STREAM, IN_OUT + "model_transaction_policy { decoupled: true }")
    directory = write_model(tmp_path, "m", CALLER, config(tree()))
    seen = []

    def other(IN):  # noqa: N803
        seen.append(IN.tolist())
        return IN + 100

    with ModelHarness(directory, models={"other": other, "stream": stream}) as harness:
        assert harness.infer(IN=[2])["OUT"].tolist() == [102, 0, 1]
    assert seen == [[2.0]]


@pytest.mark.thorough
def test_a_model_here_calls_one_elsewhere(tmp_path, model):
    caller = CALLER.partition("            stream =")[0] + textwrap.indent(
        "responses.append(answer)\nreturn responses", " " * 12
    )
    directory = write_model(
        tmp_path, "caller", caller.replace("return responses", "").rstrip() + "\n        return responses\n", IN_OUT
    )
    with ModelHarness(directory, models={"other": model}) as harness:
        assert harness.infer(IN=[0])["OUT"].tolist() == [3, foreign_minors()[0]]
        assert harness.infer(IN=[7]).error.message() == "no seven"
        assert harness.models["other"].logs


@pytest.mark.thorough
def test_a_failed_assertion_of_a_function_fails_the_test(tmp_path, cache):
    directory = write_model(tmp_path, "m", CALLER, config(tree()))

    def other(IN):  # noqa: N803
        assert IN.size == 5

    with ModelHarness(directory, models={"other": other}) as harness, pytest.raises(AssertionError):
        harness.infer(IN=[2])


def test_outputs_are_checked(tmp_path, cache):
    code = MODEL.replace('"OUT", y', '"OUTT", y')
    with (
        ModelHarness(write_model(tmp_path, "m", code, config(tree()))) as harness,
        pytest.raises(OutputError, match="OUTT"),
    ):
        harness.infer(IN=[1])


@pytest.mark.thorough
def test_a_module_that_the_environment_lacks(tmp_path, cache):
    directory = write_model(tmp_path, "m", "import fastapi\n" + MODEL, config(tree()))
    with pytest.raises(LoadError, match="ModuleNotFoundError: No module named 'fastapi'"):
        ModelHarness(directory).open()


def test_an_environment_that_is_missing(tmp_path, snapshot):
    directory = write_model(tmp_path, "m", MODEL, config(tmp_path / "no.tar.gz"))
    with pytest.raises(LoadError) as caught:
        ModelHarness(directory).open()
    assert str(caught.value).startswith(
        f"the environment {tmp_path}/no.tar.gz of model 'm' cannot be used: Failed to get the canonical path for {tmp_path}/no.tar.gz"
    )
    assert str(caught.value) == snapshot


@pytest.mark.thorough
def test_pytest_takes_an_environment(tmp_path, cache):
    directory = write_model(tmp_path, "m", MODEL, IN_OUT)
    (tmp_path / "test_m.py").write_text(
        f"def test_m(model_harness):\n    assert model_harness({str(directory)!r}).infer(IN=[0])['OUT'][1] == {foreign_minors()[0]}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--model-env={tree()}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_command_takes_an_environment(tmp_path, cache):
    directory = write_model(tmp_path, "m", MODEL, IN_OUT)
    command = [sys.executable, "-m", "pybackend_testing", str(directory), "--input", "IN=[0]", "--environment"]
    done = subprocess.run([*command, tree()], capture_output=True, text=True, check=False, timeout=60)
    assert f"OUT: float32 [2] [3., {foreign_minors()[0]}.]" in done.stdout, done.stderr


@pytest.fixture
def debuggable(tmp_path) -> Path:
    """An environment of this interpreter with debugpy and numpy."""
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "all.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return tmp_path / "env"


@pytest.mark.thorough
def test_a_debugger_stops_in_the_model(tmp_path, cache, debuggable):
    file = write_model(tmp_path, "m", MODEL, IN_OUT) / "1" / "model.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    harness = ModelHarness(file.parents[1], environment=debuggable, debug_port=port)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(harness.open)
        waits = f"a debugger to attach to 127.0.0.1:{port}"
        wait_until(lambda: any(waits in line.message for line in harness.logs), "it does not wait for a debugger")
        with DebugClient(port) as client:
            client.attach({file: [line_of(file, "self.count.increment(1)")]})
            opening.result(60)
            answer = pool.submit(harness.infer, IN=[1, 2])
            frame = client.wait_stopped()
            assert (frame["name"], client.evaluate(frame, "x.tolist()")) == ("execute", "[1.0, 2.0]")
            client.evaluate(frame, "x.fill(5)")
            client.resume(frame)
            assert answer.result(60)["OUT"].tolist() == [10, 10]
            client.detach()
        harness.close()


# --- pybackend env run ----------------------------------------------------------------------------------------------


def env_run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_command("env", "run", *map(str, arguments), timeout=60)


def test_a_command_runs_in_an_environment(cache):
    code = "import sys, os, json; print(json.dumps([sys.version_info[1], sys.prefix, os.environ['VIRTUAL_ENV']])); sys.exit(5)"
    done = env_run(packed(), "--", "python", "-c", code)
    assert done.returncode == 5, done.stderr
    minor, prefix, named = json.loads(done.stdout)
    assert minor == foreign_minors()[0]
    assert prefix == named


@pytest.mark.thorough
def test_an_environment_stays_while_a_command_runs_in_it(cache):
    prune = "import subprocess, sys; sys.stdout.write(subprocess.check_output(sys.argv[1:]).decode())"
    command = [sys.executable, "-m", "pybackend", "env", "prune", "--json"]
    done = env_run(packed(), "--", "python", "-c", prune, "env", "-u", "LD_LIBRARY_PATH", *command)
    assert json.loads(done.stdout)["removed"] == [], done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{env}", "--", "no-such-command"],
            "error: cannot run 'no-such-command' in {env}: No such file or directory\n",
        ),
        (["{env}"], "Write the command after --: `pybackend env run env.tar.gz -- python -V`\n"),
    ],
)
def test_a_command_that_cannot_run(arguments, message):
    done = env_run(*(each.format(env=tree()) for each in arguments))
    assert (done.returncode, done.stderr) == (1, message.format(env=tree()))


# --- Where the server's package is missing --------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
BARE = """
import sys
from pybackend_testing import HarnessError, ModelHarness
FLOAT = {"data_type": "TYPE_FP32", "dims": [-1]}
config = {"input": [{"name": "IN", **FLOAT}], "output": [{"name": "OUT", **FLOAT}]}
try:
    with ModelHarness(sys.argv[1], config=config, environment=sys.argv[2]) as harness:
        print(harness.infer(IN=[0])["OUT"].tolist())
except HarnessError as error:
    print(error)
"""


@pytest.mark.thorough
def test_without_the_servers_package_a_directory_still_works(tmp_path):
    directory = write_model(tmp_path, "m", MODEL, None)
    bare = [tree(foreign_minors()[-1], numpy_major=2) / "bin" / "python", "-c", BARE, directory]
    variables = {"PYTHONPATH": f"{ROOT / 'sdk'}:{ROOT / 'stub'}", "PATH": "/usr/bin:/bin"}
    answers = [
        subprocess.run([*bare, path], env=variables, capture_output=True, text=True, check=True, timeout=60).stdout
        for path in (tree(), packed())
    ]
    assert answers == [
        f"[3.0, {float(foreign_minors()[0])}]\n",
        f"model 'm' runs in the environment {packed()}, which the package 'pybackend' unpacks: install it here (`pip install .` in a "
        "clone of pybackend, Python 3.11 or newer), unpack it and name its directory with environment=..., or run pytest inside it\n",
    ]
