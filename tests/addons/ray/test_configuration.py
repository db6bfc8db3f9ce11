"""What `pybackend export ray` writes is what Ray Serve reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pybackend_addons.ray import build_from_config
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.warm_start import run_command

pytestmark = [pytest.mark.ray, pytest.mark.thorough]


def test_the_schema_of_ray_serve_takes_it_and_its_application_can_be_built(tmp_path: Path) -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed: make test-ray installs it")
    write_model(tmp_path / "models", "m", IDENTITY, identity_config())
    ended = run_command("export", "ray", str(tmp_path / "models"), "--most-replicas=4", "--measure", timeout=120)
    assert ended.returncode == 0, ended.stderr
    document = yaml.safe_load(ended.stdout)
    found = schema.ServeDeploySchema.model_validate(document)
    assert found.proxy_location == "Disabled"
    args = found.applications[0].args
    assert args["num_cpus"] >= 0.25
    assert args["memory_bytes"] > 0
    assert build_from_config(args)
