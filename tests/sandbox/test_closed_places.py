"""Models whose files are closed to the users that their processes can have: each is served, or refused with what helps."""

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from pybackend_wire.installation import install_command
from tests.sandbox.hosts import (
    IS_ROOT,
    OTHER_UID,
    ROOT_DIRECTORY,
    parameters,
    public_directory,
    public_python,
    python_in,
)
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.server import ServerProcess, serving
from tests.support.thorough import thorough

pytestmark = [
    pytest.mark.skipif(not IS_ROOT, reason="only root can close places to itself and be another user"),
    pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it"),
]

LEVELS = {
    "standard": {"SANDBOX": "standard"},
    "strict": {"SANDBOX": "strict"},
    "off": {"SANDBOX": "off"},
    "host": {"SANDBOX": "standard", "SANDBOX_UID": "host"},
    "owner": {"SANDBOX": "standard", "SANDBOX_UID": str(OTHER_UID)},
    "third": {"SANDBOX": "standard", "SANDBOX_UID": str(OTHER_UID + 1)},
}


@pytest.fixture
def base() -> Iterator[Path]:
    path = public_directory()
    yield path
    shutil.rmtree(path)


def write_each(repository: Path, prefix: str = "", **more: str) -> None:
    """A model for each way to have a user."""
    for name, options in LEVELS.items():
        write_laboratory(repository, f"{prefix}{name}", extra=parameters(**options, **more))


def give_away(path: Path, mode: int) -> None:
    """Make another user the owner of a tree."""
    for each in (path, *path.rglob("*")):
        os.chown(each, OTHER_UID, OTHER_UID, follow_symlinks=False)
    path.chmod(mode)


@contextmanager
def server_of(base: Path, *repositories: Path, python: str = "", **popen: object) -> Iterator[ServerProcess]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(base / "cache"), "HOME": str(base)}
    with serving(
        *repositories,
        flags=("--exit-on-error=false",),
        ready=False,
        python=[python or public_python(base)],
        env=environment,
        cwd=str(ROOT_DIRECTORY),
        **popen,
    ) as server:
        server.wait_until("/v2/health/live", 200)
        yield server


def command_of(python: str) -> str:
    command = Path(python).parent / "pybackend"
    return str(command) if command.exists() else "pybackend"


def outcomes(server: ServerProcess, *names: str) -> dict[str, str]:
    """The state of each model with its reason."""
    table = {}
    for name in names or LEVELS:
        row = server.wait_for(rf'"{name} +\| 1 \| (READY|UNAVAILABLE: .*)"')[1]
        table[name] = row.removeprefix("UNAVAILABLE: Unavailable: ").removeprefix(f"model '{name}' is not loaded: ")
    return table


def user_of(server: ServerProcess, model: str) -> int:
    (told,) = laboratory(server, model)("return out(OUT=text(str(os.getuid())))")["OUT"]
    return int(told)


@pytest.mark.thorough
def test_a_repository_in_another_users_home(base):
    home = base / "home"
    write_each(home / "models")
    give_away(home, 0o700)
    move = next(place for place in ("/srv", "/opt") if not str(base).startswith(place))
    mend = (
        f"enter {home}, where the model lies. Run the server as the user who owns it: "
        f"`sudo -u '#{OTHER_UID}' {command_of(public_python(base))} serve {home}/models`. Or move the models where all may enter, "
        f"`mv {home}/models {move}`, or let it pass, `chmod o+x {home}`"
    )
    neither = f"it could not run, because neither a separate user nor root without privileges can {mend}"
    with server_of(base, home / "models") as server:
        assert outcomes(server) == {
            "standard": neither,
            "strict": neither,
            "off": "READY",
            "host": f"it could not run, because root without privileges cannot {mend}",
            "owner": "READY",
            "third": f"it could not run, because user {OTHER_UID + 1}, which SANDBOX_UID names, cannot enter {home}, where the "
            f"model lies. Let it pass, `setfacl -m u:{OTHER_UID + 1}:x {home}`",
        }
        assert user_of(server, "owner") == OTHER_UID
        assert user_of(server, "off") == 0
        assert "SANDBOX_READ" not in server.output
    home.chmod(0o711)  # the last of the advised commands
    with server_of(base, home / "models") as server:
        assert set(outcomes(server).values()) == {"READY"}
        assert user_of(server, "standard") > OTHER_UID
        assert user_of(server, "third") == OTHER_UID + 1


@pytest.mark.thorough
def test_a_model_file_of_another_user(base):
    write_each(base / "models")
    files = {name: base / "models" / name / "1" / "model.py" for name in LEVELS}
    for file in files.values():
        give_away(file, 0o600)
    with server_of(base, base / "models") as server:
        found = outcomes(server)
    version = {name: file.parent for name, file in files.items()}
    assert found == {
        "standard": "it could not run, because neither a separate user nor root without privileges can read "
        f"{files['standard']}. Run `chmod -R o+rX {version['standard']}`",
        "strict": f"at SANDBOX 'strict' it must have its own user, but other users cannot read {files['strict']}. "
        f"Run `chmod -R o+rX {version['strict']}`",
        "off": "READY",
        "host": f"it could not run, because root without privileges cannot read {files['host']}. "
        f"Run `chmod -R o+rX {version['host']}`",
        "owner": "READY",
        "third": f"it could not run, because user {OTHER_UID + 1}, which SANDBOX_UID names, cannot read {files['third']}. "
        f"Run `setfacl -R -m u:{OTHER_UID + 1}:rX {version['third']}`",
    }


@pytest.mark.thorough
def test_an_access_control_list_counts(base):
    """As ``setfacl -m u:NUMBER:x`` makes it, which the mode shows only as permissions of the group."""
    home = base / "home"
    write_each(home / "models")
    give_away(home, 0o700)
    entries = [(0x01, 7, 0xFFFFFFFF), (0x02, 1, OTHER_UID + 1), (0x04, 0, 0xFFFFFFFF), (0x10, 1, 0xFFFFFFFF)]
    packed = b"".join(
        kind.to_bytes(2, "little") + mode.to_bytes(2, "little") + number.to_bytes(4, "little")
        for kind, mode, number in (*entries, (0x20, 0, 0xFFFFFFFF))
    )
    try:
        os.setxattr(home, "system.posix_acl_access", (2).to_bytes(4, "little") + packed)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists: {error}")
    with server_of(base, home / "models") as server:
        found = outcomes(server)
        assert {name for name, outcome in found.items() if outcome == "READY"} == {"off", "owner", "third"}
        assert user_of(server, "third") == OTHER_UID + 1


@pytest.mark.thorough
def test_an_interpreter_in_another_users_home(base):
    home = base / "home"
    home.mkdir()
    python = python_in(home / "python", public_python(base))
    give_away(home, 0o700)
    write_each(base / "models")
    with server_of(base, base / "models", python=python) as server:
        found = outcomes(server)
    assert {name for name, outcome in found.items() if outcome == "READY"} == {"off", "owner"}
    for name in ("standard", "strict", "host"):
        assert f" enter {home}, where the server's Python lies. Run the server as the user who owns it: " in found[name]
    assert f"cannot enter {home}, where the server's Python lies. " in found["third"]


def test_what_is_not_in_force_is_said_once_and_in_short(base):
    """The doctor says the rest."""
    closed = base / "closed"
    for name in ("one", "two"):
        write_laboratory(closed / "models", name)
    closed.chmod(0o700)
    with server_of(base, closed / "models") as server:
        assert set(outcomes(server, "one", "two").values()) == {"READY"}
        assert {user_of(server, name) for name in ("one", "two")} == {0}
        (line,) = re.findall(r'"(sandbox of .*)"', server.output)
    text, command, rest = line.split("`")
    assert (
        re.sub("'(one|two)'", "'m'", text)
        == "sandbox of model 'm', and perhaps of others: layer 'uid' is not in force. "
    )
    assert (command, rest) == (f"pybackend doctor {closed / 'models'}", " says why, and what helps")
    doctor = subprocess.run(
        [sys.executable, "-m", *command.split()], capture_output=True, text=True, check=False
    ).stdout
    assert f"chmod o+x {closed}" in doctor


@pytest.mark.thorough
def test_an_interpreter_in_a_directory_of_root(base):
    """As below ``/root``: the processes of models stay root, and are told apart from the server by the other layers."""
    closed = base / "closed"
    closed.mkdir()
    python = python_in(closed / "python", public_python(base))
    closed.chmod(0o700)
    write_each(base / "models")
    with server_of(base, base / "models", python=python) as server:
        found = outcomes(server)
        assert {name for name, outcome in found.items() if outcome == "READY"} == {"standard", "strict", "off", "host"}
        for name in ("standard", "strict"):
            assert user_of(server, name) == 0
            reason = server.get(f"/v2/models/{name}/sandbox").json["not_in_force"]["uid"]
            begin, _, advice = reason.partition(". ")
            assert begin == f"other users cannot enter {closed}, where the server's Python lies"
            *others, opened = advice.split(". Or let it pass, ")
            assert opened.removeprefix("Run ") == f"`chmod o+x {closed}`"
            for other in others:  # if the system has a Python that all may run
                python = re.search("`(.+?) -m venv", other)[1]
                install = install_command(pip=f"{python} -m venv /opt/pybackend && /opt/pybackend/bin/pip")
                assert other == f"Install the server where all may enter, {install}"
                assert os.access(python, os.X_OK)


@pytest.mark.parametrize("owner", [0, *thorough(OTHER_UID)])
@pytest.mark.thorough
def test_an_environment_below_a_closed_directory(base, owner):
    closed = base / "closed"
    closed.mkdir()
    python_in(closed / "environment", public_python(base))
    if owner:
        give_away(closed, 0o700)
    closed.chmod(0o700)
    packages = ":".join(site.getsitepackages())
    write_each(base / "models", EXECUTION_ENV_PATH=str(closed / "environment"), SANDBOX_READ=packages)
    with server_of(base, base / "models") as server:
        found = outcomes(server)
        ready = {name for name, outcome in found.items() if outcome == "READY"}
        if owner:
            assert ready == {"off", "owner"}
            for name in ("standard", "strict", "host"):
                assert f" enter {closed}, where the model's environment lies. Run the server as" in found[name]
        else:
            assert ready == {"standard", "strict", "off", "host"}, found
            assert user_of(server, "standard") == user_of(server, "strict") == 0
        assert "where the model's environment lies" in found["third"]


@pytest.mark.thorough
def test_files_that_a_model_may_miss_are_named(base):
    """What lies behind a link, an option, or in a closed file, is not needed to start: the model has its own user."""
    closed = base / "closed"
    closed.mkdir()
    (closed / "weights").write_text("weights")
    closed.chmod(0o700)
    models = base / "models"
    write_laboratory(models, "link")
    (models / "link" / "1" / "weights").symlink_to(closed / "weights")
    write_laboratory(models, "option", extra=parameters(SANDBOX="strict", SANDBOX_READ=str(closed / "weights")))
    write_laboratory(models, "file")
    (models / "file" / "1" / "weights").write_text("weights")
    give_away(models / "file" / "1" / "weights", 0o600)
    paths = {
        "link": models / "link" / "1" / "weights",
        "option": closed / "weights",
        "file": models / "file" / "1" / "weights",
    }
    with server_of(base, models) as server:
        assert set(outcomes(server, *paths).values()) == {"READY"}
        for name, path in paths.items():
            assert user_of(server, name) > OTHER_UID
            warning = server.wait_for(rf"W.*model '{name}' may miss a file: (.*)\"")[1]
            if name == "file":
                assert warning == f"other users cannot read {path}. Run `chmod -R o+rX {path.parent}`"
            else:
                assert warning.startswith(f"{path} is out of reach, because other users cannot enter {closed}. ")
            assert laboratory(server, name)(f"open({str(path)!r})").status == 500
            hint = server.wait_for(rf"W.*sandbox of '{name}_0[^']*': .* Permission denied: .*")[0]
            what = rf"cannot read {path}" if name == "file" else f"cannot enter {closed}"
            assert re.search(rf"File permissions refuse it, not the sandbox: user \d+ {what}", hint)
            assert "SANDBOX_READ" not in hint


@pytest.mark.thorough
def test_what_a_server_that_is_not_root_cannot_read(base):
    write_each(base / "models")
    for name in LEVELS:
        (base / "models" / name / "1" / "model.py").chmod(0o600)
    (base / "cache").mkdir()
    os.chown(base / "cache", OTHER_UID, OTHER_UID)
    user = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []}
    with server_of(base, base / "models", **user) as server:
        for name, outcome in outcomes(server).items():
            version = base / "models" / name / "1"
            assert outcome == (
                f"it could not run, because the server's user {OTHER_UID} cannot read {version}/model.py. "
                f"Run `setfacl -R -m u:{OTHER_UID}:rX {version}`"
            )
