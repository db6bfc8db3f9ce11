"""Processes that grow: beyond a limit they are ended, and before it a new one can take their place without a lost
request."""

import json

import pytest

from tests.faults.callers import listed, write_caller, write_streamer
from tests.faults.leaks import serving_without_leaks
from tests.faults.test_limits import parameter
from tests.faults.victims import VICTIM, Asker, ask, command, starts, told, write_victim
from tests.support.gates import Gate
from tests.support.server import free_of_processes

LIMIT_MB, RENEWED_AT_MB = 300, 150
"""A process has less than half of either until it hoards."""

GROWS = (
    VICTIM
    + """
    hoarded = b""

    def hoard(self, megabytes):
        self.hoarded += b"x" * (int(megabytes) << 20)
        return os.getpid()

    def hoard_and_wait(self, argument):
        megabytes, gate = argument.split()
        self.hoard(megabytes)
        pass_gate(self.directory, gate)

    def count(self, _):
        self.counted = getattr(self, "counted", 0) + 1
        return "%d %d" % (os.getpid(), self.counted)
"""
)
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"
AT_SIZE = parameter("RESTART_AT_MEMORY_MB", RENEWED_AT_MB)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("growth")


@pytest.fixture(scope="module")
def server(repository):
    for name, extra in {
        "of_flag": "",
        "worn": parameter("RESTART_AFTER_REQUESTS", 20) + parameter("RESTART_AFTER_REQUESTS_JITTER", 5),
        "large": AT_SIZE,
        "fails": AT_SIZE,
        "gated": AT_SIZE,
        "sequences": AT_SIZE + SEQUENCES,
        "member_a": parameter("PROCESS_GROUP", "pipeline"),
        "member_b": parameter("PROCESS_GROUP", "pipeline"),
    }.items():
        write_victim(repository, name, extra, GROWS)
    for name in ("caller", "other_caller"):
        write_caller(repository, name)
    write_streamer(repository, "streams", parameter("RESTART_AFTER_REQUESTS", 2))
    flags = (
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--process-memory-limit={LIMIT_MB << 20}",
    )
    with serving_without_leaks(repository, flags=flags) as server:
        yield server


def renewals(server, model):
    return server.metrics()[f'pybackend_stub_renewals_total{{model="{model}",version="1"}}']


def renewed(server, model, pid):
    """Wait until a model has renewed its process; returns the number of the new one."""
    return int(server.wait_for(rf"instance '{model}_0' goes on in process (\d+): process {pid} has").group(1))


# --- The limit ---


@pytest.mark.parametrize("waits", [True, False], ids=["busy", "idle"])
def test_a_process_beyond_its_limit_is_ended_and_restarted(server, waits):
    """What it was working at is told so, with the name of the limit."""
    before = int(told(server, "of_flag", "pid"))
    text = rf"The process used \d+ MB of memory, more than its limit of {LIMIT_MB} MB \(--process-memory-limit\), and was killed\."
    if waits:
        reply = ask(server, "of_flag", f"hoard_and_wait {LIMIT_MB} never")
        assert reply.status == 500
        assert reply.error.startswith("Stub process 'of_flag_0' is not healthy. The process used ")
    else:
        ask(server, "of_flag", f"hoard {LIMIT_MB}")  # it may be noticed before the answer
    server.wait_for(rf"Stub process 'of_flag_0' is not healthy\. {text} It was process {before} and took ")
    server.wait_until("/v2/models/of_flag/ready", 200)
    assert int(told(server, "of_flag", "pid")) != before


def test_a_model_whose_limit_is_too_low_for_its_start_is_not_loaded(server, repository):
    """Its own limit counts, and not that of the flag."""
    write_victim(repository, "limited", parameter("PROCESS_MEMORY_LIMIT_MB", 1), GROWS)
    reply = server.request("POST", "/v2/repository/models/limited/load", "{}")
    assert reply.status == 400
    assert "at its start, the process used " in reply.error
    assert "MB of memory, more than its limit of 1 MB (PROCESS_MEMORY_LIMIT_MB): raise it" in reply.error


def test_the_process_of_a_group_is_ended_with_all_its_models(server, repository):
    """Each of them says why."""
    assert told(server, "member_a", "pid") == told(server, "member_b", "pid")
    ask(server, "member_a", f"hoard_and_wait {LIMIT_MB} never")
    for name in ("member_a", "member_b"):
        server.wait_for(
            rf"Stub process '{name}_0' is not healthy\. The process used \d+ MB of memory, more than its limit of {LIMIT_MB} MB"
        )
        server.wait_until(f"/v2/models/{name}/ready", 200)
    assert told(server, "member_a", "pid") == told(server, "member_b", "pid")


# --- Renewal ---


def test_processes_are_renewed_after_their_requests_and_none_is_lost(server, repository):
    with Asker(server) as asker:
        pids = set()
        while len(pids) < 4:
            replies = [future.result() for future in [asker.ask("worn", "pid") for _ in range(16)]]
            assert {reply.status for reply in replies} == {200}
            pids |= {int(reply.json["outputs"][0]["data"][0]) for reply in replies}
            assert server.get("/v2/models/worn/ready").status == 200
    assert renewals(server, "worn") >= 3
    server.wait_for(
        r"instance 'worn_0' goes on in process \d+: process \d+ has had \d+ requests \(RESTART_AFTER_REQUESTS\)"
    )
    assert server.metrics()['pybackend_stub_restarts_total{model="worn",version="1"}'] == 0
    assert free_of_processes([pid for pid, _ in starts(repository / "worn")][:-2])


def test_a_process_that_has_grown_ends_when_it_has_answered(server, repository):
    """Its successor serves meanwhile."""
    before = int(told(server, "large", "pid"))
    gate = Gate(repository / "large", "held")
    with Asker(server) as asker:
        asked = asker.ask("large", f"hoard_and_wait {RENEWED_AT_MB} held")
        gate.wait_reached()
        assert renewed(server, "large", before) == int(told(server, "large", "pid"))
        gate.open()
        assert asked.result().status == 200
    assert free_of_processes([before])
    assert renewals(server, "large") == 1


def test_a_stream_that_goes_on_is_not_cut(server, repository):
    directory = repository / "streams"
    gate = Gate(directory, "long")
    before, _ = starts(directory)[-1]
    with Asker(server) as asker:
        stream = asker.ask("caller", "stream streams gate long")
        gate.wait_reached()
        assert listed(server, "other_caller", "stream streams echo x") == ["x"]
        renewed(server, "streams", before)
        assert listed(server, "other_caller", "stream streams echo y") == ["y"]
        gate.open()
        assert json.loads(stream.result().json["outputs"][0]["data"][0]) == ["before", "after"]
    assert free_of_processes([before])


def sequence(number, text, **flags):
    """A request of a sequence."""
    return {**command(text), "parameters": {"sequence_id": number, **flags}}


def counted(server, number, **flags):
    """The process of a sequence, and how many requests it has counted."""
    reply = server.infer("sequences", sequence(number, "count", **flags))
    assert reply.status == 200, reply
    pid, count = reply.json["outputs"][0]["data"][0].split()
    return int(pid), int(count)


def test_a_sequence_ends_where_it_began(server):
    """Others begin in the new process."""
    before, _ = counted(server, 1, sequence_start=True)
    server.infer("sequences", sequence(1, f"hoard {RENEWED_AT_MB}"))
    after = renewed(server, "sequences", before)
    assert counted(server, 2, sequence_start=True) == (after, 1)
    assert counted(server, 1) == (before, 2)
    assert counted(server, 1, sequence_end=True) == (before, 3)
    assert free_of_processes([before])
    assert counted(server, 2, sequence_end=True) == (after, 2)


def test_a_process_whose_successor_cannot_start_goes_on(server, repository):
    before = int(told(server, "fails", "pid"))
    broken = repository / "fails" / "broken"
    broken.touch()
    told(server, "fails", f"hoard {RENEWED_AT_MB}")
    server.wait_for(
        rf"instance 'fails_0' stays in process {before}, which has \d+ MB of memory \(RESTART_AT_MEMORY_MB\): a new one cannot "
        r"start: .*the weights are missing.*\. It is tried again in 60 s"
    )
    assert int(told(server, "fails", "pid")) == before
    broken.unlink()


def test_a_model_is_unloaded_while_its_process_is_renewed(server, repository):
    """Both end."""
    directory = repository / "gated"
    gate = Gate(directory, "initialize")
    (directory / "gated").touch()
    told(server, "gated", f"hoard {RENEWED_AT_MB}")
    gate.wait_reached()
    assert server.request("POST", "/v2/repository/models/gated/unload", "{}").status == 200
    pids = [pid for pid, _ in starts(directory)]
    assert len(pids) == 2
    assert free_of_processes(pids)
