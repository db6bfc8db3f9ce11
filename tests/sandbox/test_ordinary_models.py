"""What ordinary models do, they do at `standard` too, whoever the server runs as; what `strict` takes, its options give
back."""

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox import honest
from tests.sandbox.hosts import arena
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

DEEDS = [
    name
    for name, value in vars(honest).items()
    if callable(value) and getattr(value, "__module__", "") == honest.__name__
]
DEEDS.remove("run_all")
DEEDS.remove("leaves_processes_behind")
DEEDS.remove("knows_its_user")  # a server of a user without a name has models of one

OF_STRICT = [
    "reads_files_beside_its_code",
    "lists_its_version_directory",
    "starts_threads",
    "schedules_its_threads",
    "has_sockets_of_zeromq",
    "computes_with_several_threads",
    "writes_temporary_files",
    "makes_a_cache_of_its_own",
    "uses_a_data_base",
    "falls_back_where_files_have_no_attributes",
    "falls_back_where_files_cannot_be_watched",
    "makes_a_pipe_with_a_name",
    "discards_output",
    "uses_torch",
]
"""What a model can do that may do nothing else."""


def failures(host, model, deeds):
    host.context["own_model"] = host.context["other_model"].replace("victim", model)
    return {deed: why for deed, why in host.ask(model, deeds)["results"].items() if why}


@pytest.mark.parametrize("kind", ["root", "user", *thorough("docker", "kubernetes")])
def test_ordinary_models_do_what_they_do(kind):
    assert len(DEEDS) > 20
    models = {
        "ordinary": {"SANDBOX": "standard"},
        "strict": {"SANDBOX": "strict"},
        "networked": {"SANDBOX": "strict", "SANDBOX_NETWORK": "yes"},
        "busy": {"SANDBOX": "strict", "SANDBOX_SUBPROCESSES": "yes"},
    }
    with arena(kind, models=models) as host:
        host.server.wait_ready()
        host.context["honest"] = True
        assert failures(host, "ordinary", DEEDS) == {}
        assert failures(host, "strict", OF_STRICT) == {}
        online = ["serves_and_asks_on_loopback", "looks_up_names", "makes_a_tls_context", "listens_on_a_socket_file"]
        assert set(failures(host, "strict", online)) == {*online} - {"makes_a_tls_context"}
        assert failures(host, "networked", online) == {}
        processes = ["runs_a_program", "runs_its_own_python", "forks_a_pool", "ends_a_child", "shares_memory_by_name"]
        assert set(failures(host, "strict", processes)) == {*processes}
        assert failures(host, "busy", processes) == {}
