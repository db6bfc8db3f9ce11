"""Whether another user can reach what a model needs."""

from __future__ import annotations

import os

import pytest

from pybackend.sandbox.reach import obstacle, obstacle_below

NOBODY = 1_879_000_000
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
    return obstacle([str(tree)], NOBODY, NOBODY)


def test_a_closed_directory_is_named_with_the_command_that_opens_it(tree):
    tree.parent.chmod(0o700)
    top = blocked_here(tree)
    first = top.partition(" ")[0]
    assert top == f"{first} cannot be entered by other users: run `chmod o+x {first}`"
    assert not os.stat(first).st_mode & 0o001


def test_the_owner_and_the_group_have_rights_of_their_own(tree):
    tree.chmod(0o700)
    owner = tree.stat().st_uid
    assert obstacle_below(str(tree), owner, NOBODY) == ""
    (tree / "file").chmod(0o040)
    assert "cannot be read" in obstacle_below(str(tree), owner, NOBODY)
    assert obstacle_below(str(tree), NOBODY, tree.stat().st_gid) == ""


def test_an_unreadable_file_below_a_directory(tree):
    assert obstacle_below(str(tree), NOBODY, NOBODY) == ""
    (tree / "file").chmod(0o600)
    expected = f"{tree / 'file'} cannot be read by other users: run `chmod -R o+rX {tree}`"
    assert obstacle_below(str(tree), NOBODY, NOBODY) == expected


def test_what_is_not_there_is_in_nobodys_way():
    assert obstacle(["/nowhere/at/all"], NOBODY, NOBODY) == ""
