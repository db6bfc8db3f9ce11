"""Users for processes: each number once, none that another server has."""

import os

import pytest

from pybackend.sandbox.users import NoUsersError, UserRange

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users away")


def test_two_servers_have_none_in_common():
    one, other = UserRange(), UserRange()
    try:
        assert not {one.take() for _ in range(100)} & {other.take() for _ in range(100)}
    finally:
        one.close()
        other.close()


def test_a_number_comes_again_only_when_it_was_given_back():
    users = UserRange()
    try:
        first = users.take()
        taken = [first]
        with pytest.raises(NoUsersError) as exhausted:
            taken.extend(iter(users.take, first))
        assert len(set(taken)) == len(taken)
        assert f"all {len(taken)} users" in str(exhausted.value)
        users.give_back(first)
        assert users.take() == first
    finally:
        users.close()


def test_a_block_is_nobody_elses_until_it_is_given_back():
    users = UserRange()
    try:
        single = users.take()
        blocks = [users.take_block() for _ in range(15)]  # of 16, one of which has the single number
        with pytest.raises(NoUsersError, match="consecutive users"):
            users.take_block()
        assert len({*blocks[0]}) == len(blocks[0]) > 1
        assert len({number for block in blocks for number in block}) == sum(map(len, blocks))
        assert all(single not in block for block in blocks)
        others = {users.take() for _ in range(len(blocks[0]) - 1)}
        assert not others & {number for block in blocks for number in block}
        users.give_back(*blocks[-1])
        assert users.take_block() == blocks[-1]
    finally:
        users.close()
