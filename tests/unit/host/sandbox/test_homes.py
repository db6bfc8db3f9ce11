"""Homes of models: who gets which, what stays, and what goes."""

import os
import shutil
import time

import pytest

from pybackend.sandbox.homes import UNUSED_S, Homes

NO_GROUP = -1
LARGE = 1024**3


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "models" / "m"
    directory.mkdir(parents=True)
    return str(directory)


class Groups:
    """Numbers of groups, and those that came back."""

    def __init__(self, first: int = 70_000) -> None:
        self.next = first
        self.returned: list[int] = []

    def take(self) -> int:
        self.next += 1
        return self.next - 1

    def give_back(self, number: int) -> None:
        self.returned.append(number)


def enter(homes, model, gid=NO_GROUP, groups=None):
    groups = groups or Groups()
    return homes.enter(model, gid, groups.take, groups.give_back)


def keep(home, name="kept", size=10):
    path = home.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_a_home_stays_while_there_is_a_file_in_it(tmp_path, model):
    homes = Homes(tmp_path / "homes", LARGE)
    home = enter(homes, model)
    (home.path / "empty").mkdir()
    (home.path / "link").symlink_to(model)
    homes.leave(home)
    assert list(homes.directory.iterdir()) == []
    home = enter(homes, model)
    file = keep(home)
    homes.leave(home)
    again = enter(homes, model)
    assert again.path == home.path
    assert file.exists()


def test_models_of_one_name_and_models_of_other_users_have_other_homes(tmp_path, model):
    homes = Homes(tmp_path / "homes", LARGE)
    other = tmp_path / "others" / "m"
    other.mkdir(parents=True)
    assert homes.place(str(other)) != homes.place(model)
    assert homes.place(str(tmp_path / "others" / ".." / "models" / "m")) == homes.place(model)


@pytest.mark.parametrize("name", [b"\xc4\xe3\xba\xc3", "\u6a21".encode() * 85])
def test_names_that_are_no_text_and_the_longest_ones(tmp_path, name):
    homes = Homes(tmp_path / "homes", LARGE)
    directory = tmp_path / os.fsdecode(name)
    directory.mkdir()
    home = enter(homes, str(directory))
    keep(home)
    homes.leave(home)
    os.utime(home.path.with_name(home.path.name + ".lock"), (time.time() - UNUSED_S - 1,) * 2)
    other = tmp_path / "other"
    other.mkdir()
    enter(Homes(homes.directory, LARGE), str(other))
    assert home.path.exists(), "its model is there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_a_directory_that_changed_hands_has_another_home(tmp_path, model):
    homes = Homes(tmp_path / "homes", LARGE)
    before = homes.place(model)
    os.chown(model, 70_000, -1)
    assert homes.place(model) != before


def test_processes_of_one_kind_share_a_home_and_others_have_another(tmp_path, model):
    homes, groups = Homes(tmp_path / "homes", LARGE), Groups(os.getegid())
    first, second = (enter(homes, model, None, groups) for _ in range(2))
    assert first is second
    other, others = enter(homes, model), enter(homes, model, None, Groups(os.getegid()))
    assert len({first.path, other.path, others.path}) == 3
    homes.leave(others)
    homes.leave(first)
    assert groups.returned == []
    homes.leave(second)
    assert groups.returned == [os.getegid()]
    homes.leave(other)


def test_a_home_of_another_server_is_nobody_elses(tmp_path, model):
    one, other = (Homes(tmp_path / "homes", LARGE) for _ in range(2))
    home = enter(one, model)
    keep(home)
    beside = enter(other, model)
    assert beside.path != home.path
    one.leave(home)
    other.leave(beside)
    assert enter(other, model).path == home.path


def test_those_unused_longest_go_when_there_are_too_many_bytes(tmp_path):
    homes = Homes(tmp_path / "homes", LARGE)
    for number, age_s in enumerate((200, 300, 100)):
        directory = tmp_path / "models" / str(number)
        directory.mkdir(parents=True)
        home = enter(homes, str(directory))
        keep(home, "cache/file", 100_000)
        homes.leave(home)
        lock = home.path.with_name(home.path.name + ".lock")
        os.utime(lock, (time.time() - age_s,) * 2)
    bounded = Homes(tmp_path / "homes", 250_000)
    used = enter(bounded, str(tmp_path / "models" / "0"))
    left = sorted(path.name[0] for path in homes.directory.iterdir() if path.is_dir())
    assert left == ["0", "2"], "1 was unused the longest, and two fit"
    bounded.leave(used)


def test_a_home_in_use_stays_and_its_size_is_told(tmp_path, model, caplog):
    one = Homes(tmp_path / "homes", LARGE)
    home = enter(one, model)
    keep(home, size=100_000)
    other = tmp_path / "models" / "other"
    other.mkdir()
    enter(Homes(tmp_path / "homes", 10), str(other))
    assert home.path.exists()
    assert "--model-homes-size is 10: the largest is " + str(home.path) in caplog.text


def test_the_home_of_a_model_that_is_gone_goes_later(tmp_path, model):
    homes = Homes(tmp_path / "homes", LARGE)
    home = enter(homes, model)
    keep(home)
    homes.leave(home)
    shutil.rmtree(model)
    other = tmp_path / "models" / "other"
    other.mkdir()
    enter(Homes(homes.directory, LARGE), str(other))
    assert home.path.exists()
    os.utime(home.path.with_name(home.path.name + ".lock"), (time.time() - UNUSED_S - 1,) * 2)
    enter(Homes(homes.directory, LARGE), str(other))
    assert not home.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other groups")
def test_files_are_opened_to_the_next_group_and_names_of_foreign_files_are_not(tmp_path, model):
    homes, groups = Homes(tmp_path / "homes", LARGE), Groups()
    home = enter(homes, model, None, groups)
    had = home.gid
    closed = keep(home, "closed/file")
    program = keep(home, "closed/program")
    foreign, named = tmp_path / "foreign", home.path / "named"
    foreign.write_text("of somebody else")
    os.chown(foreign, 0, had)
    named.hardlink_to(foreign)
    for path, mode in ((closed, 0o600), (program, 0o6700), (closed.parent, 0o700)):
        os.chown(path, 70_005, had)
        path.chmod(mode)
    foreign.chmod(0o600)
    (home.path / "out").symlink_to(foreign)
    homes.leave(home)
    assert home.path.stat().st_mode & 0o777 == 0o700, "its group may be another model's next"
    home = enter(homes, model, None, groups)
    assert home.gid != had
    found = {path: os.stat(path) for path in (closed, program, closed.parent, home.path)}
    assert {status.st_gid for status in found.values()} == {home.gid}
    assert [status.st_mode & 0o7777 for status in found.values()] == [0o660, 0o770, 0o2770, 0o2770]
    assert (foreign.stat().st_gid, foreign.stat().st_mode & 0o777) == (had, 0o600)
    homes.leave(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other groups")
def test_a_home_that_has_not_changed_is_not_looked_through_again(tmp_path, model, monkeypatch):
    """What comes later is handed over all the same."""
    homes = Homes(tmp_path / "homes", LARGE)
    home = enter(homes, model)
    for number in range(50):
        keep(home, f"cache/{number}")
    for directory in (home.path / "cache", home.path):
        os.utime(directory, (1e9, 1e9))
    homes.open_again(home)
    opened = []
    plain_open = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **options: opened.append(path) or plain_open(path, *rest, **options)
    )
    assert enter(homes, model) is home
    assert len(opened) < 10
    late = keep(home, "cache/late")
    late.chmod(0o600)
    homes.open_again(home)
    assert late.stat().st_mode & 0o777 == 0o660
