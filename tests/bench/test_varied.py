"""Each row of varied requests is answered as its workload expects, and its requests differ."""

from collections.abc import Iterator

import pytest

from tests.bench import bodies, grpc_workloads, repositories, servers, varied
from tests.bench.grpc_workloads import GrpcWorkload

ROWS = {each.name: each for each in varied.workloads(20)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    repositories.write_mixed(repository)
    with servers.pybackend_launcher().start_with_grpc(repository) as running:
        yield running


@pytest.mark.parametrize("name", ROWS)
def test_a_row(server: servers.RunningServer, name: str) -> None:
    row = ROWS[name]
    if isinstance(row, GrpcWorkload):
        assert server.grpc_port is not None
        for message in row.in_turns:
            grpc_workloads.check(server.grpc_port, GrpcWorkload(name, message, row.call, {}, 0))
        grpc_workloads.check(server.grpc_port, row)
    else:
        assert len(bodies.fetch(server.port, row)[1]) == bodies.check(server.port, row)
    if row.name not in {"HTTP, all alike", "gRPC, all alike", "gRPC, a traceparent"}:
        assert len(set(row.in_turns)) > 1
