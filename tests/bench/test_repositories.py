"""The measured models, served: each answers what its workload expects, so that a run of the benchmark cannot fail late."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench import bodies, repositories, servers
from tests.bench.bodies import Workload


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    repository = tmp_path_factory.mktemp("models")
    writers: list[Callable[[Path], None]] = [
        repositories.write_ensemble,
        repositories.write_batched,
        repositories.write_chain,
        repositories.write_calls,
        repositories.write_stream,
        repositories.write_strings,
        repositories.write_large_calls,
    ]
    for write in writers:
        write(repository)
    with servers.pybackend_launcher().start(repository) as server:
        yield server.port


@pytest.mark.parametrize(
    "workload",
    [
        bodies.add_sub_json(),
        bodies.add_sub_binary(),
        bodies.add_sub_direct(),
        bodies.identity_binary(1 << 20),
        bodies.bls_add_sub(),
        bodies.bls_gather(),
        bodies.add_sub_batched(),
        bodies.one_step(),
        bodies.two_steps(),
        bodies.identity_step(1 << 20),
        bodies.identity_chain(1 << 20),
        bodies.stream(),
        bodies.strings(),
        bodies.large_calls(3, 1 << 20),
    ],
    ids=lambda workload: workload.name,
)
def test_a_model_answers_what_its_workload_expects(port: int, workload: Workload) -> None:
    assert bodies.check(port, workload) > 0
