"""Servers that models attack: as root, as another user, and under the limits of containers, in places that all can
reach."""

import ctypes
import json
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pybackend.sandbox.file_access import Account, obstacle
from tests.support.repositories import write_model
from tests.support.server import ServerProcess

ROOT_DIRECTORY = Path(__file__).resolve().parents[2]
IS_ROOT = os.geteuid() == 0

OTHER_UID = 54_321
"""Whom servers run as that are not root, where the tests are."""

OTHER = Account(OTHER_UID, frozenset({OTHER_UID}))

MEMORY_MB = 4096

CONFIG = """
backend: "python"
input [ { name: "ASKED" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group { kind: KIND_CPU }
"""

ATTACKER = """
import json, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attacks, honest

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(json.loads(request.inputs()[0].as_numpy().item())) for request in requests]

    def answer(self, asked):
        names, context = asked
        module = honest if context.get("honest") else attacks
        said = json.dumps({"pid": os.getpid(), "uid": os.getuid(), "results": module.run_all(names, context)})
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([said], dtype=object))])
"""


def public_directory() -> Path:
    """A new directory that other users can reach, and that is not for temporary files: models may use those."""
    for parent in (Path("/srv"), Path("/opt"), Path("/var/lib"), Path.home()):
        try:
            path = Path(tempfile.mkdtemp(prefix="pybackend-test-", dir=parent))
        except OSError:
            continue
        path.chmod(0o755)
        return path
    pytest.skip("there is no directory to write to but those for temporary files")


def public_python(directory: Path) -> str:
    """An interpreter that other users can run, with the packages of this one."""
    packages = [path for path in (*site.getsitepackages(), str(ROOT_DIRECTORY)) if os.path.isdir(path)]
    if not obstacle([sys.executable, sys.base_prefix, *packages], OTHER):
        return sys.executable
    blocked = obstacle(packages, OTHER)
    if blocked:
        pytest.skip(f"other users cannot read the packages of this Python: {blocked.path}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for base in (f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        if os.access(base, os.X_OK) and not obstacle([base], OTHER):
            return python_in(directory / "python", base)
    pytest.skip(f"there is no Python {version} that other users can run")


def python_in(directory: Path, base: str) -> str:
    """An interpreter in a new virtual environment, with the packages of this one."""
    subprocess.run([base, "-I", "-m", "venv", "--without-pip", str(directory)], check=True, capture_output=True)
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (directory / "lib" / f"python{version}" / "site-packages" / "packages.pth").write_text(lines)
    return str(directory / "bin" / "python")


@dataclass
class Arena:
    """A server and what it is attacked with."""

    server: ServerProcess
    context: dict[str, Any] = field(default_factory=dict)

    def ask(self, model: str, names: list[str] | None = None) -> dict[str, Any]:
        """What a model says: its process id, its user, and what became of its attacks."""
        asked = json.dumps([names or [], self.context])
        body = {"inputs": [{"name": "ASKED", "datatype": "BYTES", "shape": [1], "data": [asked]}]}
        reply = self.server.request("POST", f"/v2/models/{model}/infer", body, deadline_s=50)
        assert reply.status == 200, f"{reply}\n{self.server.output}"
        return json.loads(reply.json["outputs"][0]["data"][0])


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def write_attacker(repository: Path, name: str, **options: str) -> Path:
    directory = write_model(repository, name, ATTACKER, CONFIG + parameters(**options))
    for module in ("attacks.py", "honest.py"):
        shutil.copy(Path(__file__).with_name(module), directory / "1")
    (directory / "1" / "weights.txt").write_text("weights")
    return directory


@contextmanager
def arena(kind: str, *flags: str, models: dict[str, dict[str, str]], closed: Sequence[str] = ()) -> Iterator[Arena]:
    """A server of a kind with these models; for each what its parameters say.

    Args:
        kind: ``root``, ``user``, ``docker``, ``old`` (without Landlock), ``kubernetes`` or ``pod``.
        flags: of the server.
        models: by name, one of them ``victim``.
        closed: what in the repository nobody may enter or read.
    """
    as_root = kind in {"root", "docker", "old"}
    if not IS_ROOT and kind != "user":
        pytest.skip("only root can start it")
    with ExitStack() as stack:
        base = public_directory()
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        repository, home, temporary = base / "models", base / "home", Path("/tmp")
        if kind == "pod":
            temporary = base / "tmp"
            temporary.mkdir()
        for name, options in models.items():
            write_attacker(repository, name, **options)
        write_home(home)
        python, popen = _command(kind, public_python(base))
        if IS_ROOT and not as_root:
            subprocess.run(["chown", "-R", f"{OTHER_UID}:{OTHER_UID}", str(repository), str(home)], check=True)
        for path in closed:
            (repository / path).chmod(0)
        ends = {**stack.enter_context(_sockets(base)), **stack.enter_context(_things_of_others())}
        environment = {
            **os.environ,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(base / "cache" if as_root else home / ".cache"),
            "TMPDIR": str(temporary),
            "ATTACK_TEST_SECRET": "to be kept",
            "OPENBLAS_NUM_THREADS": "1",
        }
        ends["server_directory"] = os.path.join(environment["XDG_CACHE_HOME"], "pybackend")
        server = ServerProcess([repository], *flags, python=python, env=environment, cwd=str(ROOT_DIRECTORY), **popen)
        stack.callback(_end, server)
        yield Arena(server, _context(base, repository, home, server, ends, python[-1]))


def _end(server: ServerProcess) -> None:
    if server.process.stdout is not None and not server.process.stdout.closed:
        server.stop()


def _command(kind: str, python: str) -> tuple[list[str], dict[str, Any]]:
    if kind in {"docker", "old"}:
        return [sys.executable, "-m", "tests.sandbox.container", kind, python], {}
    if kind in {"kubernetes", "pod"}:
        return [sys.executable, "-m", "tests.sandbox.container", kind, str(OTHER_UID), python], {}
    if kind == "user" and IS_ROOT:
        return [python], {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []}
    return [python], {}


def write_home(home: Path) -> None:
    """A home directory with a secret, whose permissions would let anybody read it."""
    (home / ".ssh").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "hub").mkdir(parents=True)
    for name in (".bashrc", ".ssh/id_attacked", ".cache/huggingface/token"):
        (home / name).write_text("secret\n")
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def _sockets(base: Path) -> Iterator[dict[str, Any]]:
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as path,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
    ):
        tcp.bind(("127.0.0.1", 0))
        path.bind(str(base / "socket"))
        datagram.bind(str(base / "datagram"))
        abstract.bind(f"\0pybackend-attacked-{base.name}")
        for listener in (tcp, path, abstract):
            listener.listen(100)
        for name in ("socket", "datagram"):
            (base / name).chmod(0o777)
        yield {
            "tcp_port": tcp.getsockname()[1],
            "unix_socket": str(base / "socket"),
            "unix_datagram": str(base / "datagram"),
            "unix_abstract": f"pybackend-attacked-{base.name}",
        }


@contextmanager
def _things_of_others() -> Iterator[dict[str, Any]]:
    """A terminal and a semaphore that permissions let everybody use."""
    libc = ctypes.CDLL(None, use_errno=True)
    ours, theirs = os.openpty()
    semaphore = libc.semget(0, 1, 0o1666)
    try:
        terminal = os.ttyname(theirs)
        os.chmod(terminal, 0o666)
        yield {"terminal": terminal, "semaphore": semaphore}
    finally:
        libc.semctl(semaphore, 0, 0)
        os.close(ours)
        os.close(theirs)


def _context(
    base: Path, repository: Path, home: Path, server: ServerProcess, ends: dict[str, Any], python: str
) -> dict[str, Any]:
    setuid_id = ""
    if IS_ROOT:
        setuid_id = str(base / "setuid_id")
        shutil.copy("/usr/bin/id", setuid_id)
        os.chmod(setuid_id, 0o4755)
    said = subprocess.check_output([python, "-I", "-c", "import site; print(site.getsitepackages()[0])"], text=True)
    return {
        **ends,
        "home": str(home),
        "secret": str(home / ".ssh" / "id_attacked"),
        "other_model": str(repository / "victim"),
        "packages": said.strip(),
        "setuid_id": setuid_id,
        "host": server.process.pid,
        "http_port": server.port,
        "host_address": 0x400000,
        "most_memory": MEMORY_MB << 20,
    }


def processes_of(uid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "status").read_text().splitlines()
            except OSError:
                continue
            if any(line.split()[:2] == ["Uid:", str(uid)] for line in lines):
                found.append(int(entry.name))
    return found
