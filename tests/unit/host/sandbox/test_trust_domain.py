"""What one process can pass on to its forks: no more than it has itself, and only what lies where it lay."""

import os
import shutil

import pytest

from pybackend.sandbox.runtime_directory import RuntimeDirectory
from pybackend.sandbox.trust_domain import Reach, TrustDomain
from pybackend.sandbox.users import UserRange
from pybackend_wire.confinement import STANDARD, Confinement


def confinement(paths, **more):
    return Confinement(STANDARD, [(str(path), letters) for path, letters in paths], {"NPROC": 64}, {}, {}, **more)


@pytest.fixture
def places(tmp_path):
    for name in ("own", "other", "shared"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_fork_reaches_what_the_origin_does(places):
    reach = Reach(confinement([(places / "own", "rx"), (places / "shared", "rwx")]))
    assert reach.covers(confinement([(places / "own", "r")]))
    assert reach.covers(confinement([(places / "shared", "xr"), (places / "own", "rx")]))
    assert not reach.covers(confinement([(places / "own", "rw")]))
    assert not reach.covers(confinement([(places / "other", "r")]))


def test_what_lies_below_is_reached_too(places):
    (places / "shared" / "below").mkdir()
    reach = Reach(confinement([(places / "shared", "rwx")]))
    assert reach.covers(confinement([(places / "shared" / "below", "rw")]))
    os.symlink(places / "other", places / "shared" / "link")
    assert not reach.covers(confinement([(places / "shared" / "link", "r")])), "the link leads elsewhere"


def test_what_is_not_there_needs_no_reach_until_it_is(places):
    reach = Reach(confinement([(places / "own", "rx"), (places / "later", "rx")]))
    wanted = confinement([(places / "later", "rx")])
    assert reach.covers(wanted)
    (places / "later").mkdir()
    assert not reach.covers(wanted), "the rule was made before there was anything to make it for"


def test_what_was_put_in_place_of_something_is_not_reached(places):
    reach = Reach(confinement([(places / "own", "rx")]))
    shutil.move(places / "own", places / "old")
    (places / "own").mkdir()
    assert not reach.covers(confinement([(places / "own", "rx")]))


@pytest.mark.parametrize(
    ("had", "wanted", "covered"),
    [
        ({"network": False}, {"network": True}, False),
        ({"network": True}, {"network": False}, True),
        ({"unix_sockets": False}, {}, False),
        ({"changes_modes": False}, {}, False),
        ({}, {"limits": {"NPROC": 65}}, False),
        ({}, {"limits": {"NPROC": 63, "FSIZE": 1}}, True),
    ],
)
def test_it_allows_no_more_than_the_origin_may(places, had, wanted, covered):
    assert Reach(confinement([])._replace(**had)).covers(confinement([])._replace(**wanted)) is covered


def test_the_origin_may_what_one_of_them_may(places):
    domain = TrustDomain(None, RuntimeDirectory([places / "rooms"]), lambda _: places / "home")
    models = {"a": confinement([(places / "own", "r")], network=False), "b": confinement([(places / "shared", "rw")])}
    for name, asked in models.items():
        domain.join(name, lambda: [places / "other"])
        domain.add(name, asked)
    origin = domain.confinement()
    assert dict(origin.paths) == {
        str(places / "own"): "r",
        str(places / "shared"): "rw",
        str(places / "other"): "rwx",
        str(places / "home"): "rwx",
    }
    assert origin.network
    assert (origin.uid, origin.users) == (-1, 0)
    assert all(Reach(origin).covers(asked) for asked in models.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users away")
def test_its_processes_have_users_of_one_block_as_long_as_there_are_any(places):
    users, room = UserRange(), RuntimeDirectory([places / "rooms"])
    try:
        domain = TrustDomain(users, room, lambda _: places / "home")
        domain.join("a", list)
        first = domain.take()
        scratch = domain.make_scratch(first, first)
        assert os.stat(scratch).st_uid == first
        domain.add("a", confinement([], uid=first, gid=first))
        origin = domain.confinement()
        block = range(origin.uid, origin.uid + origin.users)
        assert first in block
        assert first != origin.uid, "the origin is a user of its own"
        assert Reach(origin).covers(confinement([(scratch, "rwx")]))
        taken = [domain.take() for _ in block]
        inside, outside = taken[0], taken[-1]
        assert inside in block
        assert outside not in block
        assert domain.forks(confinement([], uid=inside, gid=first))
        assert not domain.forks(confinement([], uid=outside, gid=first))
        assert not domain.forks(confinement([]))
        domain.give_back(first)
        assert domain.take() == first
        assert domain.leave("a")
        domain.end()
        domain.clean_up()
        assert not os.path.exists(scratch)
        assert block in {users.take_block() for _ in range(15)}, "its users were not given back"
    finally:
        users.close()
        room.close()
