"""perf_analyzer, which is fetched, measures models over both protocols and prints the server's times."""

from __future__ import annotations

import subprocess

import pytest

from tests.peers.perf_analyzer import RUNS, PerfAnalyzer, write_models
from tests.support.server import serving

pytestmark = [pytest.mark.thorough, pytest.mark.e2e]

TITLES = (
    "HTTP, 8 at once, asynchronous",
    "HTTP, sequences",
    "HTTP, system shared memory",
    "gRPC, 8 at once, asynchronous",
    "gRPC, stream of a decoupled model",
    "gRPC, sequences on a stream, oldest",
    "gRPC, system shared memory",
)


@pytest.fixture(scope="module")
def perf_analyzer(tmp_path_factory):
    try:
        return PerfAnalyzer(tmp_path_factory.mktemp("perf_analyzer"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"perf_analyzer cannot be fetched: {error}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository") / "models"
    write_models(repository)
    with serving(repository, flags=("--allow-client-shm=true",)) as server:
        yield server


@pytest.mark.spec("srv-P10")
@pytest.mark.parametrize("run", [run for run in RUNS if run.title in TITLES], ids=lambda run: run.title)
def test_it_runs_and_the_servers_times_are_filled_in(perf_analyzer, server, run):
    result = perf_analyzer.run(run, server)
    assert result.passed, result.last_line
    assert int(result.figures["requests"]) > 0
    assert int(result.figures["server"]) > 0
