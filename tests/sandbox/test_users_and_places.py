"""What models try with the names, users and directories by which a server keeps them apart."""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.errors import ModelLoadError
from pybackend.sandbox.model_sandbox import ModelSandbox, ReachableFiles
from pybackend.sandbox.options import SandboxOptions
from pybackend.sandbox.sandbox import Sandbox
from pybackend.sandbox.users import UserRange, _usable_range
from pybackend.settings import SandboxSettings
from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, arena, processes_of
from tests.sandbox.table import STANDARD, STRICT
from tests.support.gates import wait_until
from tests.support.server import free_of_processes
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only a server that is root gives users away")


@pytest.mark.thorough
@needs_root
def test_names_of_sockets_reserve_no_users():
    first, count, servers = _usable_range()
    with ExitStack() as stack:
        for server in range(servers):
            claim = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            with suppress(OSError):  # somebody else has claimed it, which is as good
                claim.bind(f"\0pybackend-users-{first + server * count}")
        with arena("root", models={"victim": {"SANDBOX": STANDARD}}) as host:
            host.server.wait_ready()
            assert host.ask("victim")["uid"] in range(first, first + servers * count)


@pytest.fixture
def locks(tmp_path):
    """Locks on all ranges of users but one, in a directory of this test, and the first number of that one."""
    directory = tmp_path / "users"
    directory.mkdir(mode=0o700)
    first, count, servers = _usable_range()
    free = first + (servers // 2) * count
    with ExitStack() as stack:
        for server in range(servers):
            file = stack.enter_context((directory / str(first + server * count)).open("w"))
            if first + server * count != free:
                fcntl.flock(file, fcntl.LOCK_EX)
        yield directory, free


@needs_root
@pytest.mark.parametrize("level", [STANDARD, STRICT])
def test_a_model_without_a_user_of_its_own_is_not_loaded(locks, tmp_path, level):
    directory, _ = locks
    with UserRangeOf(directory) as last:
        last.take()
        sandbox = Sandbox(SandboxSettings(level=level), [], tmp_path / "cache" / "bundle")
        sandbox.users = UserRange([directory])
        files = ReachableFiles(tmp_path, tmp_path, tmp_path / "model.py", HOST_ENVIRONMENT)
        with pytest.raises(ModelLoadError, match=r"cannot have its own user: .* have taken all users"):
            ModelSandbox(sandbox, "model", level, SandboxOptions(), files).of_instance(0)
        sandbox.close()


class UserRangeOf:
    """A range of users for the length of a ``with`` block."""

    def __init__(self, directory: Path) -> None:
        self._users = UserRange([directory])

    def __enter__(self) -> UserRange:
        return self._users

    def __exit__(self, *_: object) -> None:
        self._users.close()


@needs_root
def test_users_who_have_processes_are_nobody_elses(locks):
    directory, first = locks
    (directory / str(first)).write_text("7")
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=first + 7, group=0, extra_groups=[]) as user,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=0, group=first + 8, extra_groups=[]) as group,
        UserRangeOf(directory) as users,
    ):
        assert users.take() == first + 9
        user.kill()
        group.kill()


@needs_root
def test_users_come_again_as_late_as_possible(locks):
    directory, first = locks
    seen = []
    for _ in range(3):
        with UserRangeOf(directory) as users:
            seen += [users.take(), users.take()]
            users.give_back(*seen[-2:])
    assert len(set(seen)) == 6
    assert all(number >= first for number in seen)


@needs_root
def test_others_may_not_have_made_the_directory_of_reservations(tmp_path):
    directory = tmp_path / "users"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    with (
        UserRangeOf(directory) as users,
        pytest.raises(Exception, match="does not belong to the superuser alone"),
    ):
        users.take()


@needs_root
def test_what_a_strict_models_author_closed_to_its_user_is_no_way_to_be_root():
    models = {"victim": {"SANDBOX": STANDARD}, "closed": {"SANDBOX": STRICT}}
    with arena("root", "--exit-on-error=false", models=models, closed=["closed/1/weights.txt"]) as host:
        reason = host.server.wait_for(r'"closed +\| 1 \| (UNAVAILABLE.*)"')[1]
        assert re.search(r"other users cannot read .*/closed/1/weights\.txt\. Run `chmod", reason)
        assert host.ask("victim")["uid"] != 0


@pytest.mark.thorough
@needs_root
def test_a_strict_model_is_not_loaded_without_its_sandbox():
    models = {"victim": {"SANDBOX": STANDARD}, "strict": {"SANDBOX": STRICT}}
    with arena("old", "--exit-on-error=false", models=models) as host:
        reason = host.server.wait_for(r'"strict +\| 1 \| (UNAVAILABLE.*)"')[1]
        assert "files: the kernel has no Landlock" in reason
        missing = host.server.get("/v2/models/victim/sandbox").json["not_in_force"]
        assert {"files", "neighbours", "signals"} <= missing.keys()
        assert "version 6 (Linux 6.12) is required" not in missing["signals"]


@pytest.mark.parametrize("kind", ["root", *thorough("user")])
def test_a_link_in_place_of_a_directory_opens_nothing_else(kind):
    """Where a model may change its own directory, it could put one there, and end its process to be started anew."""
    shelf = {"SANDBOX": STANDARD, "SANDBOX_WRITE": "$$TRITON_MODEL_DIRECTORY/shelf"}
    with arena(kind, models={"victim": {"SANDBOX": STANDARD}, "attacker": shelf}) as host:
        directory = Path(host.context["other_model"]).with_name("attacker")
        (directory / "shelf").mkdir(exist_ok=True)
        host.server.wait_ready()
        before = host.ask("attacker")["pid"]
        shutil.rmtree(directory / "shelf")
        (directory / "shelf").symlink_to(Path(host.context["secret"]).parent)
        os.kill(before, signal.SIGKILL)
        assert free_of_processes([before])
        host.server.wait_until("/v2/models/attacker/ready", 200)
        secret = host.ask("attacker", ["read_keys"])["results"]["read_keys"]
        assert secret[0] is False, secret


@pytest.mark.thorough
@needs_root
def test_what_a_model_has_started_ends_with_a_killed_server_in_a_container():
    with arena("docker", models={"victim": {"SANDBOX": STANDARD}}) as host:
        host.server.wait_ready()
        host.context["honest"] = True
        uid = host.ask("victim", ["leaves_processes_behind"])["uid"]
        left = processes_of(uid)
        assert len(left) >= 3
        wait_until(host.server.has_warden, "nobody would look after what is left")
        host.server.process.kill()
        assert free_of_processes(left)
