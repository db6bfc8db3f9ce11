"""What somebody tries who brings the Python of a model's environment, and with it the code that runs before any other."""

import glob
import json
import shutil
import uuid
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import arena, write_attacker
from tests.sandbox.table import ATTACKS, OWN, STOPPED, STRICT, USER
from tests.sandbox.test_attacks import OWN_PROCESSES, SHARED_PROCESSES, options, to_be_tried
from tests.support.server import serving
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

IN_PLACE_OF_THE_SANDBOX = """
import ctypes, errno, json, os, struct, sys, threading, types

LAYERS = ("descriptors", "limits", "memory_pressure", "uid", "capabilities", "parent", "no_new_privileges", "memory",
          "files", "neighbours", "signals", "system_calls")
liar = types.ModuleType("pybackend_stub.sandbox")
liar.ConfinementError = Exception
liar.confine = lambda *_: dict.fromkeys(LAYERS, "")
sys.modules["pybackend_stub.sandbox"] = liar

libc = ctypes.CDLL(None, use_errno=True)
done = []

def tried(name, deed, *harmless):
    try:
        deed()
    except OSError as error:
        if error.errno not in harmless:
            return
    done.append(name)

def fork():
    if os.fork() == 0:
        os._exit(0)

def bare_fork():
    pid = libc.syscall(56 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")

def outlive():
    if libc.prctl(1, ctypes.c_ulong(0), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")

def run():
    os.execve("/", ["x"], {})  # nothing that could be run, which is what the kernel says where it is asked at all

def run_by_number():
    empty = (ctypes.c_char_p * 1)(None)
    libc.syscall(322 if os.uname().machine == "x86_64" else 281, -100, b"/", empty, empty, 0)
    raise OSError(ctypes.get_errno(), "execveat")

class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

def listen():
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    given = Filter(1, ctypes.addressof(code))
    if libc.syscall(317 if os.uname().machine == "x86_64" else 277, 1, 8, ctypes.byref(given)) < 0:
        raise OSError(ctypes.get_errno(), "seccomp")

if os.environ.get("TMPDIR"):
    tried("forks", fork)
    tried("forks by number", bare_fork)
    tried("outlives the host", outlive)
    tried("runs a program", run, errno.EACCES, errno.ENOENT)
    tried("runs a program by number", run_by_number, errno.EACCES, errno.ENOENT)
    tried("answers the kernel", listen)
    with open(os.path.join(os.environ["TMPDIR"], "MARK"), "w") as file:
        json.dump({"done": done, "pid": os.getpid()}, file)
"""


@pytest.fixture
def takes_over(environment):
    """An environment whose code takes the place of the sandbox at once; returns it, and what tells what that code got."""
    directory, packages = environment
    mark = f"pybackend-first-{uuid.uuid4().hex}"
    (packages / "first.py").write_text(IN_PLACE_OF_THE_SANDBOX.replace("MARK", mark))
    (packages / "first.pth").write_text("import first\n")

    def told(home: str) -> dict[str, object]:
        rooms = ("/run/pybackend*/**", f"{home}/.cache/pybackend/rooms/**")
        (path,) = [path for room in rooms for path in glob.glob(f"{room}/{mark}", recursive=True)]
        return json.loads(Path(path).read_text())

    return directory, told


@pytest.mark.parametrize("kind", ["root", *thorough("docker", "user", "kubernetes")])
def test_its_first_code_is_as_strict_as_the_model(takes_over, kind):
    directory, told = takes_over
    who = OWN if kind in {"root", "docker"} else USER
    processes = OWN_PROCESSES if who == OWN else SHARED_PROCESSES
    models = {"victim": {}, "attacker": {**options(STRICT, processes), "EXECUTION_ENV_PATH": str(directory)}}
    wrong = {}
    with arena(kind, models=models) as host:
        host.server.wait_ready()
        host.context |= {"other_pid": host.ask("victim")["pid"], "most_processes": processes}
        host.context["own_model"] = host.context["other_model"].replace("victim", "attacker")
        said = host.ask("attacker", [attack for attack in ATTACKS if to_be_tried(attack, who)])
        first = told(host.context["home"])
        assert first == {"done": [], "pid": said["pid"]}
        for attack, (succeeded, text) in said["results"].items():
            expected = ATTACKS[attack].verdict(STRICT, who)
            if succeeded is not None and succeeded != (expected != STOPPED):
                wrong[attack] = f"{expected}, but: {text}"
        in_force = host.server.get("/v2/models/attacker/sandbox").json
        assert in_force["level"] == STRICT
        assert in_force["not_in_force"].keys() <= {"signals", "uid"}
    assert not wrong, "\n".join(f"{attack}: {text}" for attack, text in wrong.items())


@pytest.mark.parametrize("kind", ["root", *thorough("user")])
@pytest.mark.parametrize("lines", ["Home = {real}\nhome = {fake}\n", *thorough("home = {fake}\nhome = {real}\n")])
def test_it_opens_no_directory_by_naming_it(environment, kind, lines):
    directory, _ = environment
    settings, vault = directory / "pyvenv.cfg", directory.parent / "vault"
    (vault / "bin").mkdir(parents=True)
    (vault / "secret").write_text("secret")
    real = next(line.split(" = ")[1] for line in settings.read_text().splitlines() if line.startswith("home"))
    settings.write_text(lines.format(real=real, fake=vault / "bin"))
    named = {"SANDBOX": STRICT, "EXECUTION_ENV_PATH": str(directory)}
    with arena(kind, models={"victim": {}, "attacker": named}) as host:
        host.server.wait_ready()
        host.context["secret"] = str(vault / "secret")
        assert host.ask("victim", ["read_keys"])["results"]["read_keys"][0] is True, "it can be read as such"
        assert host.ask("attacker", ["read_keys"])["results"]["read_keys"][0] is False


@pytest.mark.parametrize("place", ["projects", "models/victim/env"])
def test_what_is_no_environment_of_its_own_is_not_opened(environment, place):
    directory, _ = environment
    base = directory.parent
    reasons = {
        "projects": "it has neither a pyvenv.cfg nor a Python's standard library",
        "models/victim/env": "it belongs to another model",
    }
    write_attacker(base / "models", "victim")
    write_attacker(base / "models", "attacker", SANDBOX=STRICT, EXECUTION_ENV_PATH=str(base / place))
    shutil.copytree(directory, base / place, symlinks=True)
    if place == "projects":
        (base / place / "pyvenv.cfg").unlink()
        shutil.rmtree(base / place / "lib")
    with serving(base / "models", flags=("--exit-on-error=false",), ready=False) as server:
        reason = server.wait_for(r'"attacker +\| 1 \| (UNAVAILABLE.*)"')[1]
        assert reasons[place] in reason
