"""The tests of calls and ensembles once more, with all models of a repository in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repositories import GROUPED

pytestmark = pytest.mark.thorough

TESTS = Path(__file__).parents[2]
FILES = [
    "e2e/models/test_bls.py",
    "e2e/models/test_bls_async.py",
    "e2e/models/test_bls_decoupled.py",
    "e2e/models/test_bls_life.py",
    "e2e/models/test_bls_memory.py",
    "e2e/models/test_bls_requests.py",
    "e2e/models/test_cancellation.py",
    "e2e/models/test_custom_metrics.py",
    "e2e/models/test_ensembles.py",
    "e2e/models/test_model_control.py",
    "integration/ensembles",
    "integration/models/test_coroutines_that_call.py",
]


@pytest.mark.parametrize("file", FILES)
def test_in_one_process(file):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(TESTS / file)]
    run = subprocess.run(
        command, check=False, cwd=TESTS.parent, env={**os.environ, GROUPED: "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout
