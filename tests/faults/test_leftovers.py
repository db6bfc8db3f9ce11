"""What a model has started ends with its instance, however well it hides; what others have started lives on."""

import os
import signal
from pathlib import Path

import pytest

from pybackend.process.warden_program import NAME as WARDEN_NAME
from tests.support.callers import caller, write_caller
from tests.support.gates import wait_until
from tests.support.server import free_of_processes, name_of, serving

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")

WAYS = {
    "a child": """
        import subprocess
        return subprocess.Popen(["sleep", "3600"]).pid
    """,
    "a child in a session of its own": """
        import subprocess
        return subprocess.Popen(["sleep", "3600"], start_new_session=True).pid
    """,
    "a daemon": """
        reading, writing = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.write(writing, b"%d" % os.getpid())
                os.closerange(0, 1000)
                time.sleep(3600)
            os._exit(0)
        os.wait()
        return int(os.read(reading, 20))
    """,
    "a program without a trace": """
        import subprocess
        said = subprocess.run(
            ["/bin/sh", "-c", "cd /; setsid sleep 3600 </dev/null >/dev/null 2>&1 & echo $!"],
            stdout=subprocess.PIPE, env={}, check=True,
        )
        return int(said.stdout)
    """,
    "a daemon that tries to change its mark": """
        import contextlib, resource
        reading, writing = os.pipe()
        if not os.fork():
            os.setsid()
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(10, (12345, 12345))
            daemon = os.fork()
            if not daemon:
                time.sleep(3600)
            os.write(writing, b"%d" % daemon)
            os._exit(0)
        os.wait()
        return int(os.read(reading, 20))
    """,
    "a family": """
        import subprocess
        said = subprocess.run(
            ["/bin/sh", "-c", "setsid sh -c 'sleep 3600 & sleep 3600 & wait' >/dev/null 2>&1 & echo $!"],
            stdout=subprocess.PIPE, check=True,
        )
        return int(said.stdout)
    """,
}


def family(pid):
    """A process and all that descend from it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:  # it has not lived for long
        return [pid]
    return [pid, *(each for child in map(int, children) for each in family(child))]


@pytest.fixture(
    scope="module", params=["", 'parameters { key: "ZYGOTE" value: { string_value: "no" } }'], ids=["forked", "spawned"]
)
def repository(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("leftovers")
    for name in ("one", "other"):
        write_caller(place, name, extra="instance_group { kind: KIND_CPU }\n" + request.param)
    return place


@pytest.fixture(scope="module")
def shared(repository):
    """A server for the tests that leave it as it was."""
    with serving(repository, flags=EXPLICIT) as server:
        yield server
        assert server.stop() == 0


def leftovers(server):
    """What the model ``one`` has started, in every way, and its descendants."""
    roots = [caller(server, "one")(code) for code in WAYS.values()]
    pids = [pid for root in roots for pid in family(root)]
    assert len(pids) >= len(WAYS)
    return pids


@pytest.mark.spec("pb-H06")
@pytest.mark.parametrize("end", ["kill", "exit", "unload"])
def test_all_ends_with_the_instance(shared, end):
    pids = leftovers(shared)
    other = caller(shared, "other")
    if end == "kill":
        os.kill(caller(shared, "one")("return os.getpid()"), signal.SIGKILL)
    elif end == "exit":
        shared.infer("one", {"inputs": [code_input("os._exit(0)")]})
    else:
        other("pb_utils.unload_model('one')\nreturn 1")
    assert free_of_processes(pids), f"of {pids} some live on"
    if end == "unload":
        other("pb_utils.load_model('one')\nreturn 1")
    shared.wait_until("/v2/models/one/ready", 200)


@pytest.mark.spec("pb-H06")
def test_all_ends_with_the_server(repository):
    with serving(repository, flags=EXPLICIT) as server:
        pids = leftovers(server)
        assert server.stop() == 0
        assert free_of_processes(pids), f"of {pids} some live on"


def code_input(code):
    return {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}


@pytest.mark.spec("srv-P08", "pb-H06")
def test_all_ends_with_a_host_that_is_killed(repository):
    with serving(repository) as server:
        pids = leftovers(server)
        first = warden_of(server)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: warden_of(server) != first, "nobody takes the place of the one who would look after orphans")
        server.process.send_signal(signal.SIGKILL)
        server.wait()
        assert free_of_processes(pids), f"of {pids} some live on"


def warden_of(server):
    """The process that looks after orphans when the host is gone; waits until there is one."""
    found = []

    def look():
        found[:] = [pid for pid in server.child_pids() if name_of(pid) == WARDEN_NAME]
        return found

    wait_until(look, "nobody looks after orphans")
    return found[0]


@pytest.mark.spec("pb-H06")
def test_what_others_have_started_lives_on(repository):
    with serving(repository) as server:
        honest = [caller(server, "other")(WAYS[name]) for name in ("a daemon", "a program without a trace")]
        pid = caller(server, "one")(WAYS["a daemon"])
        os.kill(caller(server, "one")("return os.getpid()"), signal.SIGKILL)
        assert free_of_processes([pid])
        server.wait_until("/v2/models/one/ready", 200)
        assert all(Path(f"/proc/{each}").exists() for each in honest)
        assert server.stop() == 0
    assert free_of_processes(honest)


@pytest.mark.spec("pb-H06")
def test_orphans_that_end_are_no_zombies(shared):
    """They are nobody's to wait for but the host's."""
    code = """
    import subprocess
    said = subprocess.run(["/bin/sh", "-c", "sleep 0.05 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True)
    return int(said.stdout)
    """
    pids = [caller(shared, "one")(code) for _ in range(10)]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "zombies stay")
    own = caller(shared, "one")("import subprocess\nreturn subprocess.call(['/bin/sh', '-c', 'exit 7'])")
    assert own == 7, "the host has waited for a child that was not its own"
