"""Activation hooks come from where models come from, and are run by the server: they may do less than any model."""

import itertools
import logging
import os
import shlex
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pybackend.environment.cache import EnvironmentCache
from pybackend.environment.environment import Environment
from pybackend.environment.hooks import hooks_of
from pybackend.environment.provider import HookEffects
from pybackend.environment.unpacking import Cancelled
from pybackend.process.bundle import stage_bundle
from pybackend.sandbox.sandbox import Sandbox
from pybackend.sandbox.shell_runner import ShellRunner
from pybackend.settings import SandboxSettings
from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, OTHER_UID, arena, public_directory
from tests.support.gates import wait_until
from tests.support.thorough import thorough

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it"),
]

_NUMBERS = itertools.count(1)

OTHERS_FILE = "what belongs to another model"


class Hooks:
    """Hooks that are run as the server runs them.

    Args:
        base: for all files.
        limit_s: how long they may take.
    """

    def __init__(self, base: Path, limit_s: float = 60) -> None:
        self.prefix = base / "environment"
        self.directory = self.prefix / "etc" / "conda" / "activate.d"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.repository = base / "models"
        self.repository.mkdir(exist_ok=True)
        (self.repository / "model.py").write_text(OTHERS_FILE)
        self._sandbox = Sandbox(SandboxSettings(), [self.repository], stage_bundle())
        self._effects = HookEffects(EnvironmentCache(base / "cache"), ShellRunner(self._sandbox, limit_s).run)
        self.cancelled = threading.Event()

    def write(self, *texts: str) -> None:
        for number, text in enumerate(texts):
            path = self.directory / f"{number}.sh"
            path.unlink(missing_ok=True)
            path.write_text(f"{text}\n")

    def variables(self, *texts: str) -> dict[str, str]:
        """What models of an environment with these hooks get; with those that are there if none are given."""
        self.write(*texts)
        usual = {"PATH": f"{self.prefix}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{self.prefix}/lib"}
        environment = Environment(self.prefix / "bin" / "python", "identity", self.prefix, usual)
        applied = self._effects.applied(environment, hooks_of(self.prefix), None, self.cancelled)
        return dict(applied.variables)

    def close(self) -> None:
        self._sandbox.close()


@pytest.fixture
def base():
    directory = public_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def hooks(base):
    made = Hooks(base)
    yield made
    made.close()


@pytest.fixture
def many():
    """So many seconds that nobody else sleeps as long: how a test knows its own processes."""
    return f"9{os.getpid()}{next(_NUMBERS):03}"


def test_they_see_an_activated_environment_and_none_of_the_servers_secrets(hooks, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "to be kept")
    found = hooks.variables('export SEEN="$CONDA_PREFIX|$PATH|$LD_LIBRARY_PATH|$AWS_SECRET_ACCESS_KEY"')
    assert found["SEEN"] == f"{hooks.prefix}|{hooks.prefix}/bin:/usr/bin:/bin||"
    assert found["LD_LIBRARY_PATH"] == f"{hooks.prefix}/lib"


def attacks(hooks, port):
    """Each prints something if it succeeds."""
    other, prefix = shlex.quote(str(hooks.repository)), shlex.quote(str(hooks.prefix))
    return {
        "read_other_model": f"cat {other}/model.py",
        "list_repository": f"ls {other}",
        "write_to_repository": f"echo x > {other}/added && echo written",
        "change_other_model": f"echo x >> {other}/model.py && echo written",
        "change_environment": f"echo x > {prefix}/etc/conda/activate.d/z.sh && echo written",
        "write_to_tmp": "echo x > /tmp/pybackend-hook-$$ && echo written",
        "write_to_shared_memory": "echo x > /dev/shm/pybackend-hook-$$ && echo written",
        "read_shadow": "cat /etc/shadow",
        "connect": f"(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo connected",
        "signal_the_server": f"kill -0 {os.getpid()} && echo signalled",
        "read_the_servers_variables": f"cat /proc/{os.getpid()}/environ | head -c 100 | tr '\\0' ' '",
        "raise_limits": "ulimit -Ht unlimited && echo raised",
        "user_namespace": "unshare -U true && echo made",
    }


def test_attacks_are_stopped(hooks):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        tried = attacks(hooks, listener.getsockname()[1])
        lines = [f'export RESULT_{name}="$( {{ {command}; }} 2>/dev/null )"' for name, command in tried.items()]
        found = hooks.variables("export RESULT_honest=$(echo works)", *lines)
    assert found.pop("RESULT_honest") == "works"
    results = {name: value for name, value in found.items() if name.startswith("RESULT_")}
    # Where nothing scopes signals, only a user of its own, or of the server, keeps them away.
    if landlock.version() < landlock.SCOPES:
        results.pop("RESULT_signal_the_server")
    assert results == dict.fromkeys(results, "")
    assert len(results) >= len(tried) - 1
    assert os.listdir(hooks.repository) == ["model.py"]
    assert (hooks.repository / "model.py").read_text() == OTHERS_FILE


WITHOUT_END = {
    "sleep": "sleep 10000",
    "talk": "yes",
    "daemon": "setsid sleep MANY >/dev/null 2>&1 & sleep 10000",
    "deaf": "trap '' TERM INT HUP; while :; do sleep 10000; done",
}


@pytest.mark.parametrize("what", ["daemon", *thorough("sleep", "talk", "deaf")])
def test_one_without_end_is_ended(what, base, many, caplog):
    hooks = Hooks(base, limit_s=5)
    try:
        with caplog.at_level(logging.WARNING):
            found = hooks.variables(
                "export GOOD=1", f"export BAD=1\n{WITHOUT_END[what].replace('MANY', many)}", "export LATER=1"
            )
    finally:
        hooks.close()
    assert (found.get("GOOD"), found.get("BAD"), found.get("LATER")) == ("1", None, None)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        f"Activation hook {hooks.directory}/1.sh exceeded its limit of 5 s, before the hooks after it ran"
    )
    assert not _running(many)


TOO_MUCH = {
    # Where bash has put its own standard output meanwhile.
    "answer": 'for d in 10 11 12; do [ -e /proc/$$/fd/$d ] && eval "yes >&$d"; done; :',
    "variables": "export A=$(head -c 120000 /dev/zero | tr '\\0' x) B=$(head -c 120000 /dev/zero | tr '\\0' x)",
    "processor": "while :; do :; done",
    "memory": 'A=x; while :; do A="$A$A"; done',
    "processes": "for i in 1 2 3; do setsid sh -c 'setsid sleep MANY & sleep MANY' & done; sleep 0.3",
}


@pytest.mark.parametrize("what", ["answer", "processes", *thorough("variables", "processor", "memory")])
def test_one_that_takes_too_much_is_named(what, hooks, many, caplog):
    with caplog.at_level(logging.WARNING):
        found = hooks.variables(TOO_MUCH[what].replace("MANY", many))
    assert set(found) == {"PATH", "LD_LIBRARY_PATH"}
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"Activation hook {hooks.directory}/0.sh ")
    assert not _running(many)


def test_nobody_waits_for_one_that_nobody_wants(hooks, many):
    """A server that is told to stop does not wait for it; nothing of it is left."""
    hooks.write(f"setsid sleep {many} &", f"sleep {many}")
    ended = []

    def run():
        try:
            hooks.variables()
        except Cancelled:
            ended.append("cancelled")

    waiting = [threading.Thread(target=run) for _ in range(2)]  # one of them waits for the other
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(_running(many)) == 2, "the hooks do not run")
    hooks.cancelled.set()
    for thread in waiting:
        thread.join(60)
    assert ended == ["cancelled", "cancelled"]
    assert not _running(many)


def test_they_are_run_again_when_they_have_changed(hooks, caplog):
    with caplog.at_level(logging.INFO):
        for text, expected in (("export A=1", "1"), ("export A=22", "22")):
            assert [hooks.variables(text)["A"], hooks.variables()["A"]] == [expected, expected]
    assert len(caplog.records) == 2


TRIED = """
while [ ! -e "$CONDA_PREFIX/targets" ]; do sleep 0.05; done
. "$CONDA_PREFIX/targets"
got="$(cat "$SECRET" "$OTHER/1/model.py" | head -c 20; echo x 2>&- >> "$OTHER/1/model.py" && echo changed)"
echo "uid=$(id -u) got='$got' $(grep -E 'Seccomp:|NoNewPrivs:' /proc/self/status | tr -d '\\t\\n')" >&2
(exit 3)
"""


@pytest.mark.parametrize("kind", ["root", *thorough("user", "docker", "kubernetes")])
def test_every_kind_of_server_confines_them_whatever_its_models_are(environment, kind):
    directory, _ = environment
    place = directory / "etc" / "conda" / "activate.d"
    place.mkdir(parents=True)
    (place / "hook.sh").write_text(TRIED)
    options = {"SANDBOX": "off", "EXECUTION_ENV_PATH": str(directory)}
    with arena(kind, "--sandbox=off", models={"victim": options}) as host:
        draft = directory / "draft"
        draft.write_text(f"SECRET={host.context['secret']} OTHER={host.context['other_model']}\n")
        draft.rename(directory / "targets")
        told = host.server.wait_for(rf"Activation hook {place}/hook.sh returned 3: uid=(\d+) (.*)\"", 60)
        assert told[2] == "got='' NoNewPrivs:1Seccomp:2"
        uid = int(told[1])
        assert (
            (uid not in {0, OTHER_UID})
            if kind in {"root", "docker"} and IS_ROOT
            else uid == (OTHER_UID if IS_ROOT else os.getuid())
        )
        host.server.wait_ready()


def _running(argument: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if argument.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found
