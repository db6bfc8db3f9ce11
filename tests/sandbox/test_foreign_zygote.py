"""Models of one environment are forked from a process that runs its code: it can do no more than they can together,
they no more than if each had been started by itself."""

import glob
import json
import os
import shutil
import signal
import uuid
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import CONFIG, IS_ROOT, Arena, arena, parameters
from tests.sandbox.table import ATTACKS, OWN, STANDARD, STOPPED, USER
from tests.sandbox.test_attacks import OWN_PROCESSES, SHARED_PROCESSES, options, to_be_tried
from tests.sandbox.test_ordinary_models import DEEDS, failures
from tests.support.gates import wait_until
from tests.support.repositories import write_model
from tests.support.server import ServerProcess, free_of_processes, serving
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

KINDS = ["root", *thorough("docker", "user", "kubernetes")]

NEEDS_NEW_KERNEL = set() if landlock.version() >= landlock.SCOPES else {"signals"}

CHANGE_OF_USER, NOTHING = f"{1 << 6 | 1 << 7:016x}", f"{0:016x}"

AT_START = """
import json, os, time
said = {{"pid": os.getpid(), "uid": os.getuid(), "status": open("/proc/self/status").read(), "done": []}}
attacks = __file__.replace("first.py", "attacks.py")
while {waits} and not os.path.exists(attacks):
    time.sleep(0.01)
if {waits}:
    exec(open(attacks).read())
for place in (os.environ.get("TMPDIR", "/tmp"), "/tmp"):
    try:
        with open(os.path.join(place, "{mark}-%d" % os.getpid()), "w") as file:
            json.dump(said, file)
        break
    except OSError:
        continue
"""

ATTACKS_AT_START = """
def tries(name, deed, *arguments):
    try:
        deed(*arguments)
    except OSError:
        return
    said["done"].append(name)
host = os.getppid()
tries("finds its own model", open, "{own}/1/weights.txt")
tries("reads a secret", open, "{secret}")
tries("reads another environment's model", open, "{other}/1/weights.txt")
tries("writes another environment's model", open, "{other}/1/new.txt", "w")
tries("is root", os.setuid, 0)
tries("is root", os.setresuid, -1, 0, -1)
tries("is in root's group", os.setresgid, -1, 0, -1)
tries("is in root's groups", os.setgroups, [0])
if {user} != os.getuid():
    tries("is another model", os.setresuid, -1, {user}, -1)
tries("looks into the host", open, "/proc/%d/mem" % host)
tries("signals the host", os.kill, host, 0)
for other in open("/proc/%d/task/%d/children" % (host, host)).read().split():
    if int(other) != os.getpid():
        tries("signals another process", os.kill, int(other), 0)
        tries("looks into another process", open, "/proc/%s/mem" % other)
"""


@pytest.fixture
def run_first(environment):
    """Has the environment's Python run some code before anything else; returns what each of its starts said.

    With ``waits`` each start waits for a file of attacks to come.
    """
    _, packages = environment
    mark = f"pybackend-first-{uuid.uuid4().hex}"
    places = ("/run/pybackend/**", "/tmp/pybackend*-scratch/**", "/tmp")

    def files():
        return [Path(path) for place in places for path in glob.glob(f"{place}/{mark}-*", recursive=True)]

    def starts():
        return {said["pid"]: said for said in (json.loads(path.read_text()) for path in files())}

    def install(*, waits=False):
        (packages / "first.py").write_text(AT_START.format(waits=waits, mark=mark))
        (packages / "first.pth").write_text("import first\n")
        return starts

    yield install
    for path in files():
        path.unlink()


def status_of(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def privileges(status: dict[str, str]) -> set[str]:
    return {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}


@pytest.mark.spec("pb-H06")
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_one_environment_are_forked_and_confined(environment, run_first, kind):
    directory, _ = environment
    names = [f"m{number}" for number in range(6)]
    starts = run_first()
    with arena(kind, models={name: {"EXECUTION_ENV_PATH": str(directory)} for name in names}) as host:
        host.server.wait_ready()
        host.context["honest"] = True
        said = {name: host.ask(name, ["starts_threads", "writes_temporary_files"]) for name in names}
        assert {result for one in said.values() for result in one["results"].values()} == {""}
        started = starts()
        forked = [one["pid"] for one in said.values() if one["pid"] not in started]
        # Other tests make directories beside this one: a model that may reach one of these is started by itself.
        assert forked, "none was forked"
        zygote = next(one for pid, one in started.items() if pid in host.server.zygote_pids())
        status = status_of(zygote["status"])
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        uids = [one["uid"] for one in said.values()]
        if kind in {"root", "docker"}:
            assert privileges(status) == {CHANGE_OF_USER}
            assert len({0, zygote["uid"], *uids}) == len(names) + 2, "two of them are the same user"
        else:
            assert privileges(status) == {NOTHING}
        for one in said.values():
            own = status_of(Path(f"/proc/{one['pid']}/status").read_text())
            assert privileges(own) == {NOTHING}
            assert set(own["Uid"].split()) == {str(one["uid"])}
        missing = [host.server.get(f"/v2/models/{name}/sandbox").json["not_in_force"] for name in names]
        assert all(each.keys() <= NEEDS_NEW_KERNEL for each in missing), missing
        assert host.server.stop() == 0
        assert free_of_processes([zygote["pid"], *(one["pid"] for one in said.values())])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_runs_before_it_is_a_model_reaches_no_other_environments_models(environment, run_first, kind):
    directory, packages = environment
    named = {"EXECUTION_ENV_PATH": str(directory)}
    starts = run_first(waits=True)
    with arena(kind, models={"stranger": {}, "m0": named, "m1": named}) as host:
        host.server.wait_until("/v2/models/stranger/ready", 200)
        repository, stranger = Path(host.context["other_model"]).parent, host.ask("stranger")
        attacks = ATTACKS_AT_START.format(
            own=repository / "m1", secret=host.context["secret"], other=repository / "stranger", user=stranger["uid"]
        )
        (packages / "attacks.new").write_text(attacks)
        (packages / "attacks.new").rename(packages / "attacks.py")
        host.server.wait_ready()
        zygote = next(one for pid, one in starts().items() if pid in host.server.zygote_pids())
        assert zygote["done"] == ["finds its own model"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["docker", "user"])
def test_attacks_of_a_fork_on_the_host_and_on_another_fork(environment, kind):
    who = OWN if kind in {"root", "docker"} else USER
    processes = OWN_PROCESSES if who == OWN else SHARED_PROCESSES
    named = {"EXECUTION_ENV_PATH": str(environment[0])}
    models = {"a": named, "attacker": {**options(STANDARD, processes), **named}, "victim": named}
    wrong = {}
    with arena(kind, models=models) as host:
        host.server.wait_ready()
        victim = host.ask("victim")
        host.context |= {"other_pid": victim["pid"], "most_processes": processes}
        host.context["own_model"] = host.context["other_model"].replace("victim", "attacker")
        said = host.ask("attacker", [attack for attack in ATTACKS if to_be_tried(attack, who)])
        for attack, (succeeded, text) in said["results"].items():
            expected = ATTACKS[attack].verdict(STANDARD, who)
            if succeeded is not None and succeeded != (expected != STOPPED):
                wrong[attack] = f"{expected}, but: {text}"
        assert host.ask("victim")["pid"] == victim["pid"]
    assert not wrong, "\n".join(f"{attack}: {text}" for attack, text in wrong.items())


LOADER = """
class TritonPythonModel:
    def execute(self, requests):
        said = []
        for request in requests:
            verb, _, name = request.inputs()[0].as_numpy().item().decode().partition(" ")
            (pb_utils.load_model if verb == "load" else pb_utils.unload_model)(name)
            said.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([verb], dtype=object))]))
        return said
"""


def told(server: ServerProcess, verb: str, name: str) -> None:
    body = {"inputs": [{"name": "ASKED", "datatype": "BYTES", "shape": [1], "data": [f"{verb} {name}"]}]}
    reply = server.infer("loader", body)
    assert reply.status == 200, f"{reply}\n{server.output}"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["root", "kubernetes"])
def test_ordinary_models_that_were_forked_do_what_they_do(environment, kind):
    named = {"EXECUTION_ENV_PATH": str(environment[0])}
    with arena(kind, models=dict.fromkeys(("m0", "m1", "victim"), named)) as host:
        host.server.wait_ready()
        host.context["honest"] = True
        assert failures(host, "m1", DEEDS) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["root", "user"])
def test_a_directory_that_was_put_in_place_of_a_models_is_reached(environment, kind):
    """What it was forked from before may reach another one: that which lay there then."""
    named = {"EXECUTION_ENV_PATH": str(environment[0])}
    with arena(kind, models=dict.fromkeys(("m0", "m1", "victim"), named)) as host:
        host.server.wait_ready()
        directory = Path(host.context["other_model"])
        before = host.ask("victim")["pid"]
        directory.rename(directory.with_name(".old"))
        shutil.copytree(directory.with_name(".old"), directory)
        shutil.rmtree(directory.with_name(".old"))
        os.kill(before, signal.SIGKILL)
        assert free_of_processes([before])
        host.server.wait_until("/v2/models/victim/ready", 200)
        host.context["honest"] = True
        assert failures(host, "victim", ["reads_files_beside_its_code"]) == {}


@pytest.mark.thorough
@pytest.mark.skipif(not IS_ROOT, reason="only root has other users' processes forked")
def test_with_the_last_model_of_an_environment_all_that_was_for_it_goes(environment):
    base = environment[0].parent
    config = CONFIG + parameters(EXECUTION_ENV_PATH=str(environment[0]))
    for name in ("m0", "m1", "m2"):
        write_model(base / "models", name, LOADER, config)
    write_model(base / "models", "loader", LOADER, CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=loader")
    with serving(base / "models", flags=flags) as server:
        zygotes_before, stubs_before, users = server.zygote_pids(), server.stub_pids(), []
        for _ in range(2):
            for name in ("m0", "m1", "m2"):
                told(server, "load", name)
            zygotes = [pid for pid in server.zygote_pids() if pid not in zygotes_before]
            stubs = [pid for pid in server.stub_pids() if pid not in stubs_before]
            assert len(stubs) == 3
            users.append(int(status_of(Path(f"/proc/{zygotes[0]}/status").read_text())["Uid"].split()[0]))
            rooms = [path for path in Path("/run/pybackend").glob("*/*/*") if path.stat().st_uid == users[-1]]
            assert rooms
            for name in ("m0", "m1", "m2"):
                told(server, "unload", name)
            assert free_of_processes([*zygotes, *stubs]), "processes outlived their models"
            wait_until(lambda rooms=rooms: not any(map(os.path.exists, rooms)), "directories outlived their models")
        assert users[0] != users[1], "users were given to others as soon as they were free"


SEEN = "made a process that is not a child of the server"

LIES = """
import json, os, time
packed, host = json.dumps, os.getppid()
def another_one():
    while True:
        for pid in open("/proc/%d/task/%d/children" % (host, host)).read().split():
            if open("/proc/%s/comm" % pid).read().startswith("victim"):
                return int(pid)
        time.sleep(0.01)
def lie(message, *rest, **more):
    if type(message).__name__ == "Forked" and message.pid:
        message = message._replace(pid=another_one())
    return packed(message, *rest, **more)
json.dumps = lie
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["root", "user"])
def test_it_cannot_pass_another_models_process_off_as_its_fork(environment, kind):
    directory, packages = environment
    (packages / "first.py").write_text(LIES)
    (packages / "first.pth").write_text("import first\n")
    named = {"EXECUTION_ENV_PATH": str(directory)}
    with arena(kind, models={"victim": {}, "w0": named, "w1": named, "w2": named}) as host:
        host.server.wait_ready()
        victim = host.ask("victim")["pid"]
        wait_until(lambda: restarted(host, "w1") and SEEN in host.server.output, "the lie was not seen", 60)
        pids = {name: host.ask(name)["pid"] for name in ("victim", "w0", "w1", "w2")}
        assert pids["victim"] == victim
        assert len(set(pids.values())) == 4


def restarted(host: Arena, name: str) -> int:
    """The process of a model that comes after the present one was killed."""
    before = host.ask(name)["pid"]
    os.kill(before, signal.SIGKILL)
    assert free_of_processes([before])
    host.server.wait_until(f"/v2/models/{name}/ready", 200)
    return host.ask(name)["pid"]


@pytest.mark.spec("pb-H06")
@pytest.mark.parametrize("kind", ["root", *thorough("user")])
@pytest.mark.thorough
def test_one_that_dies_is_replaced(environment, run_first, kind):
    directory, _ = environment
    starts = run_first()
    names = ("m0", "m1", "victim")
    with arena(kind, models={name: {"EXECUTION_ENV_PATH": str(directory)} for name in names}) as host:
        host.server.wait_ready()
        pids = {name: host.ask(name)["pid"] for name in names}
        (zygote,) = [pid for pid in starts() if pid in host.server.zygote_pids()]
        os.kill(zygote, signal.SIGKILL)
        assert free_of_processes([zygote])
        assert {name: host.ask(name)["pid"] for name in names} == pids
        wait_until(lambda: restarted(host, "victim") not in starts(), "it is started each time, not forked", 60)
        assert "not forked" not in host.server.output
