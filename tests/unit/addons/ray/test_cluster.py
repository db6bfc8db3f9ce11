from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybackend.errors import ServerError
from pybackend.settings import ApiKeySettings, KeyExemption, TlsSettings
from pybackend_addons.ray.cluster import Pool, cluster_of, serve_config
from tests.addons.command_line import ray_settings
from tests.support.command_line import serve_settings
from tests.support.repositories import write_model


@pytest.mark.parametrize(
    "arguments",
    [
        ["--allow-client-shm=true"],
        ["--http-port=9"],
        ["--api-key-file=keys"],
        ["--http-restricted-api=trace:a=b"],
    ],
    ids=str,
)
def test_flags_that_replicas_cannot_have_are_refused(arguments: list[str], snapshot) -> None:
    with pytest.raises(ServerError) as refused:
        cluster_of(["models"], arguments)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2)])
def test_the_number_of_replicas_is_a_range(least: int, most: int) -> None:
    with pytest.raises(ServerError, match=f"{least} to {most} replicas are no range"):
        cluster_of(["models"], min_replicas=least, max_replicas=most)


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ServerError, match="'replica' is no setting of an application"):
        cluster_of(["models"], replica=2)


def test_the_command_line_becomes_settings() -> None:
    found = ray_settings(
        ["serve", "/models", "--on=ray", "--replicas=2..8", "--target-ongoing=4", "--http-port=81", "--exit-timeout-secs=5",
         "--model-control-mode=explicit", "--load-model=a", "--load-model=b", "--replica-gpus=0.5"]
    )  # fmt: skip
    assert found.arguments == (
        "--model-repository=/models", "--model-control-mode=explicit", "--load-model=a", "--load-model=b",
    )  # fmt: skip
    assert (found.min_replicas, found.max_replicas, found.target_ongoing_requests) == (2, 8, 4.0)
    assert (found.http_port, found.grpc_port, found.exit_timeout_s, found.num_gpus) == (81, 8001, 5, 0.5)


@pytest.mark.parametrize(
    "flags",
    [
        ["--replicas=2"],
        ["--on=ray", "--allow-client-shm=true"],
        ["--on=ray", "--http-address=127.0.0.1", "--grpc-address=0.0.0.0"],
        ["--on=ray", "--pool=a,modle=b"],
        ["--on=ray", "--pool=a,model=b", "--model-namespacing=true"],
        ["--on=ray", "--pools-file=a"],
        ["--pool=a,model=b"],
        ["--on=ray", "--replicas=3..2"],
    ],
    ids=str,
)
def test_flags_that_do_not_fit_are_refused(flags: list[str], snapshot) -> None:
    with pytest.raises(ServerError) as refused:
        serve_settings(["serve", "/models", *flags])
    assert str(refused.value) == snapshot


def test_a_pool_has_what_its_flag_says_and_the_gpus_of_its_models(tmp_path: Path) -> None:
    groups = {"big": "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", "small": "instance_group { kind: KIND_CPU }"}
    for name, group in groups.items():
        write_model(tmp_path, name, "", f'backend: "python"\n{group}')
    one = "--pool=one,model=big,model=small,replicas=2..4,cpus=0.5"
    found = ray_settings(["serve", str(tmp_path), "--on=ray", one, "--pool=two,model=other,gpus=0.5"])
    assert found.pools == (
        Pool("one", ("big", "small"), 2, 4, num_cpus=0.5, num_gpus=2.0),
        Pool("two", ("other",), num_gpus=0.5),
    )
    assert found.pool_of == {"big": "one", "small": "one", "other": "two"}
    seats = [number for pool in ("default", "one", "two") for number in found.seats[pool]]
    assert seats == [*range(1, len(seats) + 1)]
    (application,) = serve_config(found)["applications"]
    again = application["args"]
    assert cluster_of(again.pop("model_repository"), **again).pools == found.pools


@pytest.mark.parametrize(
    ("pools", "reason"),
    [
        ([Pool("a-b", ("m",))], "'a-b' cannot name a pool"),
        ([Pool("default", ("m",))], "'default' cannot name a pool"),
        ([Pool("a", ("m",)), Pool("a", ("n",))], "'a' cannot name a pool"),
        ([Pool("a")], "pool 'a' names no model: write --pool=a,model=MODEL"),
        ([Pool("a", ("m",)), Pool("b", ("m",))], "model 'm' is named twice"),
        ([Pool("a", ("m n",))], "'m n' cannot be in a pool"),
        ([Pool("a", ("m",), 3, 2)], "3 to 2 replicas are no range"),
        ([{"name": "a", "model": "m"}], "a pool has the fields name, models, .*, and one has name, model"),
    ],
)
def test_pools_that_contradict_themselves_are_refused(pools: list[Any], reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        cluster_of(["models"], pools=pools)


def test_files_of_the_entrance_have_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    tls = ["--http-use-ssl", "--http-server-cert=a.pem", "--http-server-key=a.key"]
    found = ray_settings(["serve", "/models", "--on=ray", "--api-key-file=keys", "--api-key-exempt=health", *tls])
    assert (found.arguments, found.grpc_tls) == (("--model-repository=/models",), None)
    assert found.api_keys == ApiKeySettings(tmp_path / "keys", frozenset({KeyExemption.HEALTH}))
    assert found.http_tls == TlsSettings(tmp_path / "a.pem", tmp_path / "a.key")
    # The same in a configuration of Ray Serve.
    names = {"certificate": "a.pem", "key": "a.key"}
    again = cluster_of(["/models"], http_tls=names, api_keys={"file": "keys", "exempt": ["health"]})
    assert (again.api_keys, again.http_tls) == (found.api_keys, found.http_tls)
    with pytest.raises(
        ServerError, match="http_tls has the fields certificate, key, root, mutual, and certificat was given"
    ):
        cluster_of(["/models"], http_tls={"certificat": "a.pem"})
