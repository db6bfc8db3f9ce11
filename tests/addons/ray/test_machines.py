"""Two machines, which are two of Ray's nodes here: one of them dies, or is told to go, while requests come."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as httpclient

from tests.addons.ray.conftest import EXAMPLES, Application, wait_until
from tests.addons.ray.machines import Machines, machines
from tests.addons.ray.test_failures import Load

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

LOST_WITH_CONNECTIONS = ("broke: whether it has run", "UNAVAILABLE", "connection closed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray installs it")
    home = Path(tempfile.mkdtemp(prefix="h", dir=Path.home()))
    with machines(home, 2) as found:
        yield found
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def application(cluster: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    models = tmp_path_factory.mktemp("ray") / "models"
    shutil.copytree(EXAMPLES / "add_sub" / "model_repository" / "add_sub", models / "add_sub")
    home = Path(cluster.environment["HOME"])
    started = Application(models, home, "--replicas=2", "--http-address=127.0.0.1", environment=cluster.environment)
    yield started
    assert started.stop() == 0, started.output


def machines_of_replicas(application: Application) -> set[str]:
    return {each["node"] for each in application.status()["replicas"] if each["serves"]}


def test_each_machine_has_a_replica(application: Application) -> None:
    found = application.status()
    assert machines_of_replicas(application) == {each["node"] for each in found["machines"] if each["alive"]}
    assert "2 machines" in application.command("status", "--on=ray")
    assert "joined the cluster at" in application.output


def test_a_machine_that_dies_takes_only_the_requests_that_it_had(application: Application, cluster: Machines) -> None:
    load = Load(application)
    with load.running():
        before = machines_of_replicas(application)
        cluster.kill()
        wait_until(lambda: len(machines_of_replicas(application)) == 1, "one replica is left", application)
        load.wait_for_more()
        cluster.add()
        wait_until(lambda: len(machines_of_replicas(application)) == 2, "two machines have replicas", application)
        with httpclient.InferenceServerClient(application.http) as client:
            wait_until(client.is_server_ready, "two replicas are ready", application)
        load.wait_for_more()
    assert len(machines_of_replicas(application) & before) == 1
    assert len(load.failures) <= 2, load.failures
    assert all(any(text in failure for text in LOST_WITH_CONNECTIONS) for failure in load.failures), load.failures


def test_no_request_fails_when_a_machine_is_told_to_go(application: Application, cluster: Machines) -> None:
    """Its replica goes when another machine has one in its place."""
    (leaving,) = machines_of_replicas(application) - {first_machine(application)}
    load = Load(application, callers=2)
    with load.running():
        cluster.add()
        ray = Path(sys.executable).with_name("ray")
        subprocess.run(
            [ray, "drain-node", f"--address={cluster.environment['RAY_ADDRESS']}", f"--node-id={leaving}",
             "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test", "--deadline-remaining-seconds=300"],
            env=cluster.environment, check=True, capture_output=True,
        )  # fmt: skip
        wait_until(
            lambda: len(machines_of_replicas(application) - {leaving}) == 2 and leaving not in machines_of_replicas(application),
            "the replica has moved", application,
        )  # fmt: skip
        load.wait_for_more()
    assert load.failures == []


def first_machine(application: Application) -> str:
    return next(each["node"] for each in application.status()["machines"] if each["first"])
