"""What may be imported where: the stub's half needs numpy only and stays light; the host's door stays cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each costs a stub milliseconds at start-up or memory for as long as it lives.
SLOW = {"asyncio", "concurrent", "multiprocessing", "logging", "unittest", "http", "email", "ssl", "sqlite3", "xml"}


def _imported_by(statement, *paths, after=""):
    """The top-level modules that `statement` adds to a fresh interpreter in which `after` ran before."""
    code = (
        f"import sys, json; sys.path[:0] = {[str(path) for path in paths]!r}\n{after}\n"
        f"before = set(sys.modules)\n{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "import pybackend_stub.loop, pybackend_stub.executor, pybackend_stub.bootstrap",
        "import triton_python_backend_utils, c_python_backend_utils",
    ],
    ids=["stub", "sdk"],
)
def test_model_process_imports_nothing_slow_of_ours(statement):
    added = {
        name.split(".")[0] for name in _imported_by(statement, ROOT / "stub", ROOT / "sdk", after="import numpy, json")
    }
    assert not added & SLOW


def test_model_process_imports_numpy_and_the_standard_library_only():
    added = _imported_by(
        "import pybackend_stub.loop, pybackend_stub.executor, triton_python_backend_utils", ROOT / "stub", ROOT / "sdk"
    )
    ours = {"pybackend_stub", "pybackend_wire", "pybackend_sdk", "triton_python_backend_utils"}
    optional = {"msgpack"}  # used where a model's environment has it, never required
    foreign = {name.split(".")[0] for name in added} - ours - optional - {"numpy"} - set(sys.stdlib_module_names)
    # numpy brings compiled helpers of its own under top-level names.
    assert {name for name in foreign if not name.startswith(("_cython", "cython_runtime"))} == set()


def test_importing_the_package_costs_nothing():
    assert not {"fastapi", "numpy", "uvicorn", "tritonclient"} & set(_imported_by("import pybackend", ROOT / "host"))


def test_command_line_starts_without_the_web_stack():
    """``pybackend --help`` answers at once, and stubs start before the web stack is imported."""
    added = _imported_by("import pybackend.cli", ROOT / "host", ROOT / "stub")
    assert not {"fastapi", "uvicorn", "pydantic", "starlette"} & set(added)
