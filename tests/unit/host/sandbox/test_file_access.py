"""Whether another user can reach what a model needs."""

import os

import pytest

from pybackend.sandbox import file_access
from pybackend.sandbox.file_access import Account, Obstacle, is_enforced, obstacle, obstacle_below

NUMBER = 1_879_000_000
NOBODY = Account(NUMBER, frozenset({NUMBER}))
"""A user and a group that no file belongs to."""


@pytest.fixture
def tree(tmp_path):
    """A tree that starts where others can go, whatever the directory of the tests is like."""
    directory = tmp_path / "open" / "inner"
    directory.mkdir(parents=True)
    for path in (directory, directory.parent):
        path.chmod(0o755)
    (directory / "file").write_text("x")
    (directory / "file").chmod(0o644)
    return directory


def blocked_here(tree):
    """What is in the way outside the tree: the directory that pytest makes is its owner's alone."""
    return obstacle([str(tree)], NOBODY)


def test_a_closed_directory_is_named_with_its_owner(tree):
    tree.parent.chmod(0o700)
    top = blocked_here(tree)
    assert top.on_way
    assert (top.verb, top.owner) == ("enter", os.stat(top.path).st_uid)
    assert not os.stat(top.path).st_mode & 0o001


def test_the_owner_and_the_group_have_rights_of_their_own(tree):
    tree.chmod(0o700)
    owner = Account(tree.stat().st_uid, NOBODY.groups)
    assert obstacle_below(str(tree), owner) is None
    (tree / "file").chmod(0o040)
    assert obstacle_below(str(tree), owner) == Obstacle(str(tree / "file"), owner.uid, on_way=False)
    assert obstacle_below(str(tree), Account(NUMBER, frozenset({tree.stat().st_gid}))) is None


def test_an_unreadable_file_below_a_directory(tree):
    assert obstacle_below(str(tree), NOBODY) is None
    (tree / "file").chmod(0o600)
    expected = Obstacle(str(tree / "file"), os.geteuid(), on_way=False)
    assert obstacle_below(str(tree), NOBODY) == expected
    assert expected.verb == "read"


def test_what_is_not_there_is_in_nobodys_way():
    assert obstacle(["/nowhere/at/all"], NOBODY) is None


def test_every_link_on_the_way_to_a_file_is_followed(tree):
    """The first link leads through a closed directory to a second one, which leads to an open file."""
    (tree / "closed").mkdir()
    (tree / "closed" / "second").symlink_to(tree / "file")
    (tree / "first").symlink_to(tree / "closed" / "second")
    (tree / "closed").chmod(0o700)
    places = [file_access.obstacle_on_way([str(tree / name)], owner_of(tree)) for name in ("file", "first")]
    assert places == [None, None]
    if blocked_here(tree) is None:
        assert obstacle([str(tree / "first")], NOBODY) == Obstacle(str(tree / "closed"), os.geteuid(), on_way=True)


def owner_of(tree):
    return Account(tree.stat().st_uid, NOBODY.groups)


def test_a_ring_of_links_ends(tree):
    (tree / "ring").symlink_to(tree / "ring")
    assert obstacle([str(tree / "ring")], owner_of(tree)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_the_kernel_has_the_last_word_about_a_place():
    """On a file system that ignores modes, a place that they close is open to the program that asks."""
    assert is_enforced(Obstacle("/proc/1/mem", 0, on_way=False), NOBODY)
    assert is_enforced(Obstacle("/proc/1/fd", 0, on_way=True), Account(0, frozenset({0})))
    assert not is_enforced(Obstacle("/etc/passwd", 0, on_way=False), NOBODY)
    assert not is_enforced(Obstacle("/usr", 0, on_way=True), Account(0, frozenset({0})))


OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


@pytest.mark.parametrize(
    ("entries", "readable"),
    [
        ([(USER, 4, NUMBER), (MASK, 4, 0), (OTHERS, 0, 0)], True),
        ([(USER, 4, NUMBER), (MASK, 0, 0), (OTHERS, 4, 0)], False),
        ([(USER, 4, NUMBER + 1), (MASK, 7, 0), (OTHERS, 0, 0)], False),
        ([(GROUP, 4, NUMBER), (MASK, 4, 0), (OTHERS, 0, 0)], True),
        ([(GROUP, 0, NUMBER), (MASK, 7, 0), (OTHERS, 4, 0)], False),
        ([(OTHERS, 4, 0)], True),
    ],
    ids=["user", "masked", "another-user", "group", "group-without", "others"],
)
def test_access_control_lists(tree, monkeypatch, entries, readable):
    """A file system without such lists cannot show them, so what the kernel would tell is given here."""
    whole = sorted([(OWNER, 6, 0xFFFFFFFF), (OWNING_GROUP, 0, 0xFFFFFFFF), *entries])
    packed = b"".join(
        kind.to_bytes(2, "little") + mode.to_bytes(2, "little") + n.to_bytes(4, "little") for kind, mode, n in whole
    )
    monkeypatch.setattr(os, "getxattr", lambda path, name: (2).to_bytes(4, "little") + packed)
    (tree / "file").chmod(0o640)
    found = obstacle_below(str(tree), NOBODY)
    assert (found is None) == readable
