"""The manual's page about tests without a server: its examples run, its texts are the harness's."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pybackend_testing import InputError, ModelHarness
from pybackend_testing import __all__ as names

pytest.importorskip("pybackend", reason="config.pbtxt is read by the server's package")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "authors" / "testing.md").read_text()
EXAMPLES = re.findall(r'```python title="(test_\w+\.py)"\n(.*?)```', PAGE, re.DOTALL)


@pytest.mark.parametrize(("name", "source"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_examples_pass(name, source, tmp_path):
    (tmp_path / name).write_text(source)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "pybackend_testing.pytest_plugin", "-c", os.devnull, "--rootdir",
            str(tmp_path), "-p", "no:cacheprovider", "-W", "error", "-q", name,
        ],
        cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_prints_what_the_page_shows(tmp_path):
    (command, shown) = re.search(r"\$ (python -m pybackend_testing [^\n]*)\n(.*?)```", PAGE, re.DOTALL).groups()
    words = command.replace("python", sys.executable, 1)
    done = subprocess.run(["sh", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False)
    numbers = re.compile(r"[0-9]+\.[0-9]+ (ms|s)")
    assert numbers.sub("T", done.stdout) == numbers.sub("T", shown)


def test_texts_of_refused_requests():
    shown = re.findall(r"^InputError: (.*)$", PAGE, re.MULTILINE)
    add_sub = ROOT / "examples" / "add_sub" / "model_repository" / "add_sub"
    batch = ROOT / "examples" / "auto_complete" / "model_repository" / "batch_model"
    four = np.ones(4, np.float32)
    said = []
    for directory, inputs in (
        (add_sub, {"INPT0": four, "INPUT1": four}),
        (add_sub, {"INPUT0": four.astype(np.float64), "INPUT1": four}),
        (batch, {"INPUT0": four}),
    ):
        with ModelHarness(directory) as harness, pytest.raises(InputError) as caught:
            harness.infer(inputs)
        said.append(str(caught.value))
    assert said == shown


def test_every_argument_and_every_error_is_named():
    arguments = list(inspect.signature(ModelHarness).parameters)[1:]
    errors = [name for name in names if name.endswith(("Error", "Failed", "NoResponse"))]
    assert [name for name in [*arguments, *errors] if f"`{name}" not in PAGE and f"`{name}" not in PAGE] == []
