"""An environment of its own for models: one that other users can run, and whose Python runs what a test likes first."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sandbox.hosts import public_directory, public_python

_UNUSED = shutil.ignore_patterns("tests", "include", "*.pyi", "*.pxd")
"""Two thirds of numpy's files."""


@pytest.fixture
def environment():
    """A virtual environment with numpy, and the directory of its packages."""
    directory = public_directory()
    try:
        base = public_python(directory)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        made = directory / "environment"
        subprocess.run([base, "-I", "-m", "venv", "--without-pip", str(made)], check=True, capture_output=True)
        packages = made / "lib" / version / "site-packages"
        installed = Path(np.__file__).parent
        for name in ("numpy", "numpy.libs"):
            if (installed.parent / name).is_dir():
                shutil.copytree(installed.parent / name, packages / name, ignore=_UNUSED)
        yield made, packages
    finally:
        shutil.rmtree(directory, ignore_errors=True)
