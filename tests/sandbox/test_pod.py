"""A server in a pod as careful operators write it: no privileges, nothing to write to but a directory for temporary
files, little shared memory."""

import os
import subprocess
import sys

import pytest

from tests.sandbox.hosts import arena

MOUNTS = "from tests.sandbox.container import mount_as_in_a_pod; mount_as_in_a_pod()"


@pytest.mark.spec("srv-P17")
def test_a_read_only_pod_with_little_shared_memory(tmp_path):
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    mounts = subprocess.run([sys.executable, "-c", MOUNTS], env=variables, capture_output=True, check=False)
    if mounts.returncode:
        pytest.skip("only who may mount file systems can make what a pod has")
    with arena("pod", "--http-max-input-size=200000000", models={"victim": {}}) as host:
        host.server.wait_ready()
        host.context |= {"honest": True, "padding": "x" * 80_000_000}  # more than there is in /dev/shm
        host.context["own_model"] = host.context["other_model"]
        deeds = ["writes_temporary_files", "starts_threads", "reads_files_beside_its_code"]
        assert host.ask("victim", deeds)["results"] == dict.fromkeys(deeds, "")
        assert host.server.get("/v2/models/victim/sandbox").json["level"] == "standard"
        assert host.server.stop() == 0
