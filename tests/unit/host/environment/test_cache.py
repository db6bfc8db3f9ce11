"""The cache of environments between threads and processes, crashes included."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pybackend.environment import cache as cache_module
from pybackend.environment.cache import EnvironmentCache, default_cache_directory
from pybackend.environment.hooks import HookEffect
from pybackend.environment.unpacking import Cancelled
from pybackend.errors import ErrorCode, ModelEnvironmentError
from tests.unit.host.environment.conftest import files, header, tar_of

DEADLINE_S = 60
CONTENT = tar_of(*files(bin__activate=b"", lib__data=b"data" * 1000))
OTHER = tar_of(*files(bin__activate=b"", lib__data=b"other"))


@pytest.fixture
def cache(tmp_path):
    return EnvironmentCache(tmp_path / "cache")


@contextmanager
def holding(cache, path, never):
    held = cache.hold(path, never)
    try:
        yield held
    finally:
        held.release()


@pytest.mark.spec("pb-V02")
def test_an_archive_is_unpacked_once_however_it_is_named(cache, archive, never, tmp_path):
    first = archive(CONTENT)
    shutil.copy(first, tmp_path / "copy.tar")
    with holding(cache, first, never) as one, holding(cache, tmp_path / "copy.tar", never) as two:
        assert (one.was_unpacked, two.was_unpacked) == (True, False)
        assert one.prefix == two.prefix == tmp_path / "cache" / "environments" / one.key
        assert (one.prefix / "lib" / "data").read_bytes() == b"data" * 1000


@pytest.mark.spec("pb-V02")
def test_a_touched_archive_is_hashed_again_a_changed_one_is_unpacked_again(cache, archive, never, monkeypatch):
    hashed = []
    original = cache_module.key_of
    monkeypatch.setattr("pybackend.environment.cache.key_of", lambda *given: hashed.append(1) or original(*given))
    path = archive(CONTENT)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    monkeypatch.setattr(cache_module, "_YOUNG_NS", -1)

    def was_unpacked():
        before = len(hashed)
        with holding(cache, path, never) as held:
            return held.was_unpacked, len(hashed) - before

    assert was_unpacked() == (True, 2)  # before it is unpacked, and again to see that nobody wrote meanwhile
    assert was_unpacked() == (False, 0)
    path.touch()
    assert was_unpacked() == (False, 1)
    path.write_bytes(OTHER)
    assert was_unpacked() == (True, 2)
    path.write_bytes(CONTENT)
    assert was_unpacked() == (False, 1)


def test_a_file_that_was_just_written_is_not_taken_for_known(cache, archive, never):
    """Another write may follow within the same tick of the clock, of the same length."""
    path = archive(CONTENT)
    with holding(cache, path, never) as first:
        status = path.stat()
        path.write_bytes(CONTENT.replace(b"data" * 1000, b"date" * 1000))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with holding(cache, path, never) as second:
            assert second.key != first.key


@pytest.mark.spec("pb-V02")
def test_an_archive_may_be_replaced_while_its_environment_is_used(cache, archive, never, tmp_path):
    with holding(cache, archive(CONTENT), never) as before:
        (tmp_path / "new.tar").write_bytes(OTHER)
        (tmp_path / "new.tar").replace(tmp_path / "env.tar")
        with holding(cache, tmp_path / "env.tar", never) as after:
            assert (before.prefix / "lib" / "data").read_bytes() == b"data" * 1000
            assert (after.prefix / "lib" / "data").read_bytes() == b"other"


def test_an_archive_that_is_written_while_it_is_read_is_refused(cache, archive, never, monkeypatch, tmp_path):
    path = archive(CONTENT)
    keys = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr("pybackend.environment.cache.key_of", lambda *_: next(keys))
    with pytest.raises(ModelEnvironmentError, match="was modified while it was being read: load the model again"):
        cache.hold(path, never)
    assert [entry.mark for entry in cache.entries()] == [None]
    assert not (tmp_path / "cache" / "environments" / ("a" * 40)).exists()


def test_threads_share_one_unpacking(cache, archive, never):
    path = archive(CONTENT)
    with ThreadPoolExecutor(8) as threads:
        held = list(threads.map(lambda _: cache.hold(path, never), range(8)))
    assert sum(each.was_unpacked for each in held) == 1
    for each in held:
        each.release()


HOLD = """
    import sys, threading
    from pathlib import Path
    from pybackend.environment.cache import EnvironmentCache
    held = EnvironmentCache(Path(sys.argv[1])).hold(Path(sys.argv[2]), threading.Event())
    print(int(held.was_unpacked), flush=True)
    sys.stdin.read()
"""


def start(code, *arguments, **options):
    """A process that runs some code."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


@contextmanager
def ended(*processes):
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.faults
def test_processes_share_one_unpacking(archive, tmp_path):
    path = archive(tar_of(*files(**{f"f{number}": os.urandom(2000) for number in range(500)})))
    processes = [start(HOLD, tmp_path / "cache", path) for _ in range(4)]
    with ended(*processes):
        assert sorted(process.stdout.readline().strip() for process in processes) == ["0", "0", "0", "1"]


@pytest.mark.faults
def test_what_a_living_process_uses_stays(cache, archive, never, tmp_path):
    path = archive(CONTENT)
    process = start(HOLD, tmp_path / "cache", path)
    with ended(process):
        assert process.stdout.readline() == "1\n"
        (entry,) = cache.entries()
        assert entry.in_use
        assert not cache.remove(entry.key)
        assert (entry.prefix / "lib" / "data").exists()
    (entry,) = cache.entries()
    assert not entry.in_use
    assert cache.remove(entry.key)
    assert os.listdir(tmp_path / "cache" / "environments") == []
    with holding(cache, path, never) as held:
        assert held.was_unpacked


STOP_IN_THE_MIDDLE = """
    import sys, threading, time
    from pathlib import Path
    from pybackend.environment import prefixes, unpacking
    from pybackend.environment.cache import EnvironmentCache
    original, count = unpacking._write, 0
    def write(*given):
        global count
        count += 1
        if count == 3:
            print("in the middle", flush=True)
            sys.stdin.read()
        return original(*given)
    unpacking._write = write
    EnvironmentCache(Path(sys.argv[1])).hold(Path(sys.argv[2]), threading.Event())
"""


@pytest.mark.faults
def test_what_was_killed_in_the_middle_is_done_again(cache, archive, never, tmp_path):
    path = archive(tar_of(*files(**{f"f{number}": b"x" * 100 for number in range(10)})))
    process = start(STOP_IN_THE_MIDDLE, tmp_path / "cache", path)
    with ended(process):
        assert process.stdout.readline() == "in the middle\n"
        (entry,) = cache.entries()
        assert (entry.mark, entry.in_use) == (None, True)
        process.send_signal(signal.SIGKILL)
    assert entry.prefix.exists()
    (entry,) = cache.entries()
    assert (entry.mark, entry.in_use) == (None, False)
    with holding(cache, path, never) as held:
        assert held.was_unpacked
        assert len(os.listdir(held.prefix)) == 10


@pytest.mark.faults
def test_whoever_waits_goes_on_when_the_other_is_killed(cache, archive, never, tmp_path):
    path = archive(tar_of(*files(**{f"f{number}": b"x" * 100 for number in range(10)})))
    process = start(STOP_IN_THE_MIDDLE, tmp_path / "cache", path)
    with ended(process), ThreadPoolExecutor(1) as thread:
        assert process.stdout.readline() == "in the middle\n"
        waiting = thread.submit(cache.hold, path, never)
        process.send_signal(signal.SIGKILL)
        held = waiting.result(DEADLINE_S)
        assert held.was_unpacked
        held.release()


@pytest.mark.faults
def test_waiting_can_be_cancelled(cache, archive, tmp_path):
    path = archive(tar_of(*files(**{f"f{number}": b"x" * 100 for number in range(10)})))
    process = start(STOP_IN_THE_MIDDLE, tmp_path / "cache", path)
    cancelled = threading.Event()
    with ended(process), ThreadPoolExecutor(1) as thread:
        assert process.stdout.readline() == "in the middle\n"
        waiting = thread.submit(cache.hold, path, cancelled)
        cancelled.set()
        with pytest.raises(Cancelled):
            waiting.result(DEADLINE_S)


def test_an_archive_cannot_declare_itself_complete(cache, archive, never, tmp_path):
    """Marks and locks lie beside environments, where no member of an archive gets to."""
    path = archive(tar_of(*files(**{".ready": b"{}", "ready": b"{}"}), (header(".lock"), b"")))
    with holding(cache, path, never) as held:
        prefix, key = held.prefix, held.key
    (tmp_path / "cache" / "environments" / f"{key}.ready").unlink()
    (prefix / "half").write_bytes(b"")
    with holding(cache, path, never) as held:
        assert held.was_unpacked
        assert not (prefix / "half").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 0}'])
def test_a_damaged_mark_is_none(text, cache, archive, never, tmp_path):
    path = archive(CONTENT)
    with holding(cache, path, never) as held:
        mark = tmp_path / "cache" / "environments" / f"{held.key}.ready"
    mark.write_text(text)
    with holding(cache, path, never) as held:
        assert held.was_unpacked


def test_a_cache_that_was_moved_is_filled_again(cache, archive, never, tmp_path):
    """Files of an environment know where they were unpacked."""
    with holding(cache, archive(CONTENT), never):
        pass
    (tmp_path / "cache").rename(tmp_path / "moved")
    with holding(EnvironmentCache(tmp_path / "moved"), tmp_path / "env.tar", never) as held:
        assert held.was_unpacked


@pytest.mark.parametrize("damaged", [True, False])
def test_after_a_restart_of_the_machine_sizes_are_looked_at_once(damaged, cache, archive, never, tmp_path):
    path = archive(CONTENT)
    with holding(cache, path, never) as held:
        prefix = held.prefix
    mark = prefix.with_name(prefix.name + ".ready")
    document = json.loads(mark.read_text())
    mark.write_text(json.dumps({**document, "boot": "another"}))
    if damaged:
        (prefix / "lib" / "data").write_bytes(b"")  # what a power failure leaves of a file
    with holding(cache, path, never) as held:
        assert held.was_unpacked is damaged
        assert (prefix / "lib" / "data").read_bytes() == b"data" * 1000
    assert json.loads(mark.read_text())["boot"] == document["boot"]


def test_unused_environments_make_room(archive, never, tmp_path):
    cache = EnvironmentCache(tmp_path / "cache", limit_bytes=10_000)
    paths = [archive(tar_of(*files(f=os.urandom(4000))), f"{number}.tar") for number in range(4)]
    used = cache.hold(paths[0], never)
    keys = [used.key]
    for age, path in enumerate(paths[1:]):
        with holding(cache, path, never) as held:
            keys.append(held.key)
        when = time.time() - 1000 + age
        os.utime(tmp_path / "cache" / "environments" / f"{held.key}.lock", (when, when))
    assert {entry.key for entry in cache.entries()} == {keys[0], keys[3]}
    used.release()


@pytest.mark.faults
@pytest.mark.skipif(os.getuid() != 0, reason="needs a small file system, which only root can mount")
def test_a_full_disk_leaves_nothing(archive, never, tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mounted], capture_output=True, check=False
    ).returncode:
        pytest.skip("this system does not let root mount a file system")
    try:
        cache = EnvironmentCache(mounted)
        path = archive(tar_of(*files(a=b"x" * 100_000, b=os.urandom(2_000_000))))
        with pytest.raises(ModelEnvironmentError, match="No space left on device; `pybackend env prune`") as caught:
            cache.hold(path, never)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert [entry.prefix.exists() for entry in cache.entries()] == [False]
        with holding(cache, archive(CONTENT), never) as held:
            assert held.was_unpacked
    finally:
        subprocess.run(["umount", mounted], check=True)


@pytest.mark.faults
def test_a_directory_that_cannot_be_written_is_named(archive, never, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ModelEnvironmentError, match=r"cannot unpack .*: Not a directory; name a directory that this user"
    ):
        EnvironmentCache(tmp_path / "file" / "cache").hold(archive(CONTENT), never)


def test_a_directory_that_others_can_write_is_refused(cache, archive, never, tmp_path):
    (tmp_path / "cache" / "environments").mkdir(parents=True)
    (tmp_path / "cache" / "environments").chmod(0o777)
    with pytest.raises(ModelEnvironmentError, match="is writable for others, and models would execute files put there"):
        cache.hold(archive(CONTENT), never)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_filled_cache_serves_users_that_cannot_write_it(archive, never, tmp_path):
    """As in an image that was built with its environments unpacked."""
    path = archive(CONTENT)
    with holding(EnvironmentCache(tmp_path / "cache"), path, never) as held:
        expected = held.prefix
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o005 and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o011)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def other_user():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            theirs.send(EnvironmentCache(tmp_path / "cache").hold(path, never).prefix)
        except BaseException as error:
            theirs.send(repr(error))

    process = context.Process(target=other_user)
    process.start()
    assert ours.poll(DEADLINE_S)
    assert ours.recv() == expected
    process.join()


def test_an_archive_that_is_not_there_is_named(cache, never, tmp_path):
    with pytest.raises(ModelEnvironmentError, match=r"cannot read .*env\.tar: No such file or directory"):
        cache.hold(tmp_path / "env.tar", never)


def test_the_usual_place(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_directory() == tmp_path / "pybackend"
    monkeypatch.delenv("XDG_CACHE_HOME")
    expected = Path("/var/cache/pybackend") if os.getuid() == 0 else Path.home() / ".cache" / "pybackend"
    assert default_cache_directory() == expected


def test_what_hooks_set_is_remembered_until_the_environment_is_removed(cache, archive, never):
    effect = HookEffect({"A": "\udcff"}, path=("/env/x",))  # a value need not be text
    with holding(cache, archive(CONTENT), never) as held:
        assert cache.records.hook_effect(held.key) is None
        cache.records.keep_hook_effect(held.key, effect)
        assert cache.records.hook_effect(held.key) == effect
        for damaged in ("damaged", "[]", '{"variables": 3}'):
            (cache.directory / f"{held.key}.hooks").write_text(damaged)
            assert cache.records.hook_effect(held.key) is None
    assert cache.remove(held.key)
    assert os.listdir(cache.directory) == []


def test_where_it_cannot_be_remembered_nothing_is_left(cache, archive, never):
    with holding(cache, archive(CONTENT), never) as held:
        (cache.directory / f"{held.key}.hooks").mkdir()
        before = set(os.listdir(cache.directory))
        cache.records.keep_hook_effect(held.key, HookEffect())
        assert set(os.listdir(cache.directory)) == before
