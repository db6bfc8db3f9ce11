"""Private directories: made, removed, and cleared up after those who could not."""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pybackend.sandbox.runtime_directory import PASSED_BY_OTHERS, RuntimeDirectory, runtime_places


def test_a_directory_is_made_and_removed(tmp_path):
    room = RuntimeDirectory([tmp_path / "rooms"])
    assert not (tmp_path / "rooms").exists()
    made = room.make()
    assert os.stat(made).st_mode & 0o777 == 0o700
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("x")
    os.symlink(tmp_path / "elsewhere", os.path.join(made, "link"))
    room.remove(made)
    assert not os.path.exists(made)
    assert (tmp_path / "elsewhere" / "kept").exists(), "a link was followed"
    room.close()
    assert list((tmp_path / "rooms").iterdir()) == []


def test_directories_in_directories_without_end(tmp_path):
    room = RuntimeDirectory([tmp_path / "rooms"])
    made = room.make()
    here = os.getcwd()
    try:
        os.chdir(made)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    room.remove(made)
    assert not os.path.exists(made)
    room.close()


def test_what_a_dead_server_left_is_removed_and_what_a_living_one_has_is_not(tmp_path):
    living = RuntimeDirectory([tmp_path])
    kept = living.make()
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom pybackend.sandbox.runtime_directory import RuntimeDirectory\n"
        "print(RuntimeDirectory([Path(sys.argv[1])]).make(), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    left = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    left_behind = left.stdout.strip()
    assert os.path.isdir(left_behind)
    next_one = RuntimeDirectory([tmp_path])
    next_one.make()
    assert not os.path.exists(left_behind)
    assert os.path.isdir(kept)
    next_one.close()
    living.close()


def test_a_place_that_others_can_write_to_is_not_taken(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    shared.chmod(0o777)
    room = RuntimeDirectory([shared, own])
    assert room.make().is_relative_to(own)
    room.close()
    with pytest.raises(PermissionError, match="does not belong to this user alone"):
        RuntimeDirectory([shared]).make()
    linked = tmp_path / "linked"
    linked.symlink_to(own)
    with pytest.raises(NotADirectoryError):
        RuntimeDirectory([linked]).make()


def test_models_and_servers_that_begin_at_the_same_time(tmp_path):
    """Nobody takes a room that is just being made for one that was left behind."""
    for _ in range(20):
        rooms = [RuntimeDirectory([tmp_path]) for _ in range(4)]
        with ThreadPoolExecutor(16) as pool:
            made = list(pool.map(lambda room: room.make(), rooms * 4))
        assert len(set(made)) == 16
        assert all(os.path.isdir(path) for path in made)
        for room in rooms:
            room.close()
        assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_directory_leads_removal_nowhere(tmp_path):
    room = RuntimeDirectory([tmp_path / "rooms"])
    common = room.make(PASSED_BY_OTHERS)
    made, victim = room.make(within=common), room.make(within=common)
    kept = Path(victim, "kept")
    kept.write_text("x")
    os.rename(made, f"{made}.old")
    os.symlink(victim, made)
    room.remove(made)
    assert not os.path.islink(made)
    os.rename(common, f"{common}.old")
    os.symlink(f"{common}.old", common)
    room.remove(victim)
    assert Path(f"{common}.old", os.path.basename(victim), "kept").exists(), "a link was followed"
    room.close()
    assert list((tmp_path / "rooms").iterdir()) == []


def test_nothing_lies_where_models_may_write(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    room = RuntimeDirectory(runtime_places(tmp_path / "own"))
    assert room.make().is_relative_to(tmp_path / "own" / "rooms")
    assert list((tmp_path / "temporary").iterdir()) == []
    room.close()
