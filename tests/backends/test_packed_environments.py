"""Backends in environments that ``pybackend pack --backend`` makes, with another Python than the server's.

Packing takes minutes, so these tests run under ``make test-frameworks`` only, which sets the variable below.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from pybackend.modelconfig.backend_places import lock_of
from tests.bench import bodies
from tests.floor.environments import interpreters
from tests.support.conda_channel import kept
from tests.support.packed_environments import run_pack
from tests.support.server import serving

for package in ("onnx", "onnxruntime", "skops", "xgboost"):
    pytest.importorskip(package)

from tests.bench import framework_models  # noqa: E402

VARIABLE = "PYBACKEND_TEST_PACKING"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"packing takes minutes: {VARIABLE}=1 wants it"),
]

WRITERS = {
    "fil": framework_models.write_forest,
    "onnxruntime": framework_models.write_small_network,
    "sklearn": framework_models.write_pipeline,
}
PACK_DEADLINE_S, LOAD_DEADLINE_S = 900, 600


@pytest.mark.parametrize("backend", WRITERS)
def test_a_model_answers_as_its_library_from_an_environment_with_another_python(backend, tmp_path):
    others = [minor for minor in interpreters() if 9 <= minor <= 13 and minor != sys.version_info.minor]
    if not others:
        pytest.skip("there is only one CPython on this machine")
    minor = max(others)

    def make(directory):
        arguments = ("--backend", backend, "--python", f"3.{minor}", "-o", directory / "env.tar.zst")
        done = run_pack(*arguments, deadline_s=PACK_DEADLINE_S)
        if done.returncode == 4:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr

    archive = kept(f"{backend}-3.{minor}", [lock_of(backend).read_text()], make) / "env.tar.zst"
    model = WRITERS[backend](tmp_path / "models", np.random.default_rng(0))
    flags = (f"--backend-config={backend},environment={archive}", f"--environment-cache-directory={tmp_path / 'cache'}")
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        server.wait_for(rf"runs on Python 3\.{minor}\.", LOAD_DEADLINE_S)
        server.wait_for(r"models? (is|are) ready in", LOAD_DEADLINE_S)
        bodies.check(server.port, model.workload)
