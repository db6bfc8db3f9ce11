"""The stub runs in every environment that models may have: CPython from 3.8 on, numpy from 1.19 on, msgpack or not.

What cannot be had on a machine is skipped, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pybackend.inference.request import InferenceRequest
from pybackend.process.bundle import stage_bundle
from tests.floor import environments
from tests.support.engine import engine_on, input_tensor, output_array
from tests.support.repositories import identity_config, write_model

ROOT = Path(__file__).resolve().parents[2]

# A model that says where it runs, one that only passes tensors on by DLPack, and one that counts.
ABOUT = """
import sys
class TritonPythonModel:
    def execute(self, requests):
        facts = {
            "python": "%d.%d" % sys.version_info[:2],
            "numpy": np.__version__,
            "msgpack": "msgpack" in sys.modules,
            "modules": sorted(sys.modules),
        }
        import json
        text = np.array([json.dumps(facts)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""
DLPACK = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", request.inputs()[0].to_dlpack())])
            for request in requests
        ]
"""
METRICS = """
class TritonPythonModel:
    def initialize(self, args):
        F = pb_utils.MetricFamily
        self.families = [F("floor_%d" % kind, "d", kind) for kind in (F.COUNTER, F.GAUGE, F.HISTOGRAM)]
        counters, gauges, histograms = self.families
        self.counter, self.gauge = counters.Metric({"a": "b"}), gauges.Metric()
        self.histogram = histograms.Metric(buckets=[0.5, 1])

    def execute(self, requests):
        value = requests[0].inputs()[0].as_numpy()[0]
        self.counter.increment(1)
        self.gauge.set(value)
        self.histogram.observe(1)
        values = np.array([self.counter.value(), self.gauge.value()])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]) for _ in requests]
"""


@pytest.fixture(scope="module", params=environments.rows(), ids=str)
def row(request: pytest.FixtureRequest) -> environments.Row:
    return request.param


@pytest.fixture(scope="module")
def python(row: environments.Row) -> str:
    """The interpreter of a row's environment."""
    try:
        return environments.python_of(row)
    except environments.Unavailable as reason:
        pytest.skip(f"{row} was not run: {reason}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples as they are, and three models more."""
    directory = tmp_path_factory.mktemp("floor")
    for example, model in (("add_sub", "add_sub"), ("string_upper", "string_upper"), ("auto_complete", "batch_model")):
        shutil.copytree(ROOT / "examples" / example / "model_repository" / model, directory / model)
    write_model(directory, "about", ABOUT, identity_config("TYPE_STRING"))
    write_model(directory, "dlpack", DLPACK, identity_config("TYPE_INT16"))
    write_model(directory, "metrics", METRICS, identity_config("TYPE_FP64"))
    return directory


async def _ask(engine, model_name: str, **arrays: np.ndarray):
    model = engine.repository.catalogue.find(model_name)
    inputs = [input_tensor(name, array) for name, array in arrays.items()]
    return await engine.open(model.name, model.version).infer(InferenceRequest(model_name, inputs=inputs))


async def _use_every_model(repository: Path, python: str) -> dict[str, object]:
    """Ask every model something, check the answer, and return what the stub says about its environment."""
    async with engine_on(repository, python=python) as engine:
        states = {model.name: (model.state.value, model.reason) for model in engine.repository.catalogue.models()}
        assert set(states.values()) == {("READY", "")}, states
        left, right = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)

        response = await _ask(engine, "add_sub", INPUT0=left, INPUT1=right)
        np.testing.assert_array_equal(output_array(response, "OUTPUT0"), left + right)
        np.testing.assert_array_equal(output_array(response, "OUTPUT1"), left - right)

        signature = engine.repository.catalogue.find("batch_model").signature
        assert list(signature.inputs), "the model did not complete its configuration"
        arrays = {name: np.stack([left, right]) for name in signature.inputs}
        response = await _ask(engine, "batch_model", **arrays)
        assert {output.shape[0] for output in response.outputs} == {2}
        response.release()

        (name,) = engine.repository.catalogue.find("string_upper").signature.inputs
        words = np.array([b"", "dež in veter".encode(), b"a" * 20_000], dtype=object)
        response = await _ask(engine, "string_upper", **{name: words})
        upper = [element.decode() for element in output_array(response, response.outputs[0].name).ravel()]
        assert upper == [word.decode().upper() for word in words]
        response.release()

        for array in (np.arange(-3, 3, dtype=np.int16), np.zeros(0, np.int16), np.arange(30_000, dtype=np.int16)):
            response = await _ask(engine, "dlpack", IN=array)
            np.testing.assert_array_equal(output_array(response, "OUT"), array)
            response.release()

        for count, value in enumerate((1.5, np.inf, -np.inf, np.nan), start=1):
            response = await _ask(engine, "metrics", IN=np.array([value]))
            np.testing.assert_array_equal(output_array(response, "OUT"), [count, value])
            response.release()

        response = await _ask(engine, "about", IN=words)
        return json.loads(output_array(response, "OUT").item())


@pytest.fixture(scope="module")
def facts(python: str, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a stub says about its environment, after every model has answered right; warnings are errors in it."""
    if _run(python, "-W", "error", "-c", "import numpy").returncode == 0:  # an old numpy may not like a newer CPython
        strict = tmp_path_factory.mktemp("strict") / "python"
        strict.write_text(f'#!/bin/sh\nexec {python} -W error "$@"\n')
        strict.chmod(0o755)
        python = str(strict)
    return asyncio.run(_use_every_model(repository, python))


def _run(python: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", "-B", *arguments], capture_output=True, text=True, check=False, **options)


@pytest.mark.timeout(300)
def test_models_run(row, facts):
    assert facts["python"] == f"3.{row.minor}"
    assert facts["numpy"].partition(".")[0] == str(row.numpy_major)
    assert facts["msgpack"] is row.msgpack, "msgpack is used where it is, and json where it is not"


@pytest.mark.timeout(300)
def test_every_module_of_the_bundle_is_imported_without_a_warning(python):
    bundle = stage_bundle()
    modules = sorted(
        ".".join(path.relative_to(bundle).with_suffix("").parts).removesuffix(".__init__")
        for path in bundle.rglob("*.py")
        if path.name != "__main__.py" and not path.match("pybackend_backends/*/*")  # these import their frameworks
    )
    assert "pybackend_stub.loop" in modules
    code = (
        # numpy may warn about an interpreter that is newer than itself: that is its own business.
        "import numpy, sys, warnings; warnings.simplefilter('error')\n"
        f"sys.path.insert(0, {str(bundle)!r})\n"
        f"for name in {modules!r}: __import__(name)\n"
    )
    sources = [path.read_text() for path in bundle.rglob("*.py")]
    compiling = (
        f"import warnings; warnings.simplefilter('error')\nfor source in {sources!r}: compile(source, 'x', 'exec')"
    )
    for text in (code, compiling):
        done = _run(python, "-", input=text)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(300)
def test_nothing_slow_is_imported_in_a_stub(python, facts):
    """Each of these would cost every model's process memory and start-up time."""
    slow = {"asyncio", "concurrent", "multiprocessing", "unittest", "http", "email", "ssl", "xml", "logging", "pydoc"}
    brought_by_numpy = set(_run(python, "-c", "import numpy, sys; print(*sys.modules)").stdout.split())
    assert not (slow & set(facts["modules"])) - brought_by_numpy
