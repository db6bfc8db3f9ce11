"""One instance more: models of all kinds are loaded, each as often as the plan says."""

import dataclasses
from pathlib import Path

import pytest

from tests.bench import bodies, instances, repositories
from tests.bench.plan import FULL


def test_every_kind_gets_its_rounds(tmp_path: Path) -> None:
    samples = instances.measure(dataclasses.replace(FULL, load_rounds=1), tmp_path)
    kinds = {(start, sandbox) for start in instances.STARTS for sandbox in instances.SANDBOXES}
    assert {(sample.start, sample.sandbox) for sample in samples} == kinds
    assert len(samples) == len(kinds)
    assert all(sample.seconds > 0 for sample in samples)


def test_a_load_that_fails_is_no_sample(tmp_path: Path) -> None:
    repositories.write_add_sub(tmp_path, ["broken"])
    (tmp_path / "broken" / "1" / "model.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    with (
        instances.loading_launcher().start(tmp_path) as server,
        pytest.raises(bodies.WrongReplyError, match=r"load of broken: status 400.*ModuleNotFoundError"),
    ):
        instances.load(server.port, "broken")
