"""Model Analyzer, which is fetched, loads a model in several configurations and has perf_analyzer measure each."""

import subprocess

import pytest

from tests.peers.model_analyzer import FLAGS, TIMEOUT_S, ModelAnalyzer
from tests.support.server import serving

pytestmark = [pytest.mark.thorough, pytest.mark.spec("srv-P13"), pytest.mark.timeout(TIMEOUT_S)]


@pytest.fixture(scope="module")
def analyzer(tmp_path_factory):
    try:
        return ModelAnalyzer(tmp_path_factory.mktemp("model_analyzer"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Model Analyzer cannot be fetched: {error}")


def test_it_profiles_a_model_of_a_running_server(analyzer):
    with serving(analyzer.repository, flags=FLAGS) as server:
        assert analyzer.remote(server, "grpc") == ""


def test_it_profiles_a_model_with_servers_that_it_starts(analyzer):
    assert analyzer.local() == ""
