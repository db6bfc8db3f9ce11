"""An application changes while requests come: its models, its flags, and the number of its replicas."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as httpclient

from tests.addons.ray.conftest import EXAMPLES, Application, running, wait_until
from tests.addons.ray.test_failures import Load, haproxy
from tests.support.repositories import write_model

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """One replica, whose update needs a second one."""
    models = tmp_path_factory.mktemp("ray") / "models"
    for name in ("add_sub", "to_kelvin"):
        shutil.copytree(next(EXAMPLES.glob(f"*/model_repository/{name}")), models / name)
    with running(models, "--replicas=1..2", "--replica-cpus=0.5") as started:
        yield started


def test_no_request_fails_while_the_models_change(application: Application, tmp_path: Path) -> None:
    """The next repository has another version of one model, and not the other one, which was loaded again before."""
    models = tmp_path / "models"
    shutil.copytree(application.models / "add_sub", models / "add_sub")
    source = models / "add_sub" / "1" / "model.py"
    source.write_text(source.read_text().replace("left + right", "left + right + 1"))
    with httpclient.InferenceServerClient(application.http) as client:
        client.load_model("to_kelvin")
        client.update_log_settings({"log_verbose_level": 1})
        entrance = haproxy(application)
        load = Load(application, callers=2, expected=(2.0, 3.0))
        with load.running():
            said = application.command(
                "serve", str(models), *application.flags, "--replicas=2", "--replica-cpus=0.5", "--update"
            )
            load.wait_for_more()
        assert load.failures == []
        assert "Updated after" in said
        wait_until(client.is_server_ready, "two replicas are ready", application)
        found = application.status()
        assert [replica["lags"] for replica in found["replicas"]] == ["", ""]
        assert {model["name"] for replica in found["replicas"] for model in replica["models"]} == {"add_sub"}
        assert found["pools"]["default"]["min_replicas"] == 2
        assert haproxy(application) != entrance
        assert client.get_log_settings()["log_verbose_level"] == 1
    later = Load(application, expected=(3.0,))
    with later.running():
        later.wait_for_more()


def test_an_update_that_cannot_start_leaves_what_runs(application: Application, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "broken", "raise ValueError('no weights')", 'backend: "python"')
    load = Load(application, expected=(2.0, 3.0))
    with load.running():
        said = application.command(
            "serve",
            str(tmp_path / "models"),
            *application.flags,
            "--replicas=2",
            "--replica-cpus=0.5",
            "--update",
            status=1,
        )
        load.wait_for_more()
    assert load.failures == []
    assert "no weights" in said
    assert "Replicas from before the update serve on" in said
    assert "ray/serve" not in said  # the calls of Ray Serve
