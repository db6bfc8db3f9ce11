from __future__ import annotations

from pathlib import Path

import pytest

from pybackend.cli.options import parse
from pybackend.errors import ServerError
from pybackend.ray.cluster import Cluster, cluster_of
from pybackend.settings import ApiKeySettings, KeyExemption, TlsSettings


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--allow-client-shm=true"], "--allow-client-shm cannot be used with --on=ray: a load balancer may send"),
        (["--http-port=9"], "--http-port is the entrance's, not the replicas': write http_port=... instead"),
        (["--api-key-file=keys"], "--api-key-file is the entrance's, not the replicas': write api_keys=... instead"),
        (["--http-restricted-api=trace:a=b"], "the entrance knows API keys, but no groups of calls"),
    ],
)
def test_flags_that_replicas_cannot_have_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        cluster_of(["models"], arguments)


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2)])
def test_the_number_of_replicas_is_a_range(least: int, most: int) -> None:
    with pytest.raises(ServerError, match=f"{least} to {most} replicas are no range"):
        cluster_of(["models"], min_replicas=least, max_replicas=most)


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ServerError, match="'replica' is no setting of an application"):
        cluster_of(["models"], replica=2)


def test_the_command_line_becomes_settings() -> None:
    found = parse(
        ["serve", "/models", "--on=ray", "--replicas=2..8", "--target-ongoing=4", "--http-port=81", "--exit-timeout-secs=5",
         "--model-control-mode=explicit", "--load-model=a", "--load-model=b", "--replica-gpus=0.5"]
    )  # fmt: skip
    assert isinstance(found, Cluster)
    assert found.arguments == (
        "--model-repository=/models", "--model-control-mode=explicit", "--load-model=a", "--load-model=b",
    )  # fmt: skip
    assert (found.min_replicas, found.max_replicas, found.target_ongoing_requests) == (2, 8, 4.0)
    assert (found.http_port, found.grpc_port, found.exit_timeout_s, found.num_gpus) == (81, 8001, 5, 0.5)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--replicas=2"], "--replicas needs --on=ray: one machine has one server"),
        (
            ["--on=ray", "--allow-client-shm=true"],
            "--allow-client-shm cannot be used with --on=ray: a load balancer may",
        ),
        (
            ["--on=ray", "--http-address=::1", "--grpc-address=0.0.0.0"],
            "the entrance has one address, and the flags name several",
        ),
        (["--on=ray", "--replicas=3..2"], "expected a number such as 2, or a range such as 2..8"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: list[str], reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        parse(["serve", "/models", *flags])


def test_files_of_the_entrance_have_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    tls = ["--http-use-ssl", "--http-server-cert=a.pem", "--http-server-key=a.key"]
    found = parse(["serve", "/models", "--on=ray", "--api-key-file=keys", "--api-key-exempt=health", *tls])
    assert isinstance(found, Cluster)
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
