"""The account of what is kept for clients: its limit holds, and slow clients make room, the slowest first."""

from __future__ import annotations

import pytest

from pybackend.errors import ErrorCode
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.pace import SLOW_AFTER_SECONDS, SLOW_RATE_BYTES_PER_S, Pace


class Connection:
    """A client that moves so many bytes in a second."""

    def __init__(self, rate_bytes_per_s=SLOW_RATE_BYTES_PER_S):
        self.pace = Pace()
        self.pace.advance(SLOW_AFTER_SECONDS, SLOW_AFTER_SECONDS * rate_bytes_per_s)
        self.is_open = True

    def make_room(self):
        self.is_open = False


@pytest.fixture
def account():
    return KeptBytes(100)


def test_claims_replace_each_other(account):
    one, other = Connection(), Connection()
    assert account.claim(one, 60)
    assert account.claim(other, 40)
    assert not account.claim(one, 61)
    assert account.used_bytes == 100
    assert account.claim(one, 10)
    assert account.claim(other, 90)
    assert account.claim(one, 0)
    assert account.claim(other, 0)
    assert account.used_bytes == 0


def test_fast_clients_keep_what_they_have(account):
    fast, taker = Connection(), Connection()
    account.claim(fast, 60)
    assert not account.claim(taker, 50)
    assert fast.is_open
    assert account.used_bytes == 60


def test_slow_clients_make_room_the_slowest_first(account):
    slow, slower, slowest = (Connection(rate) for rate in (30, 20, 10))
    for connection in (slower, slowest, slow):
        account.claim(connection, 30)
    assert account.claim(Connection(), 70)
    assert [each.is_open for each in (slow, slower, slowest)] == [True, False, False]
    assert account.used_bytes == 100


def test_a_slow_client_does_not_close_itself(account):
    slow = Connection(0)
    account.claim(slow, 60)
    assert not account.claim(slow, 101)
    assert slow.is_open
    assert account.used_bytes == 60


def test_giving_back_closes_nobody(account):
    slow, taker = Connection(0), Connection()
    account.claim(slow, 50)
    account.claim(taker, 50)
    account.limit_bytes = 10
    assert account.claim(taker, 20)
    assert slow.is_open


def test_the_error_names_the_limit(account):
    account.claim(Connection(), 60)
    error = account.error(50)
    assert error.code is ErrorCode.UNAVAILABLE
    for part in ("60 bytes", "50 more", "limit of 100", "--http-memory-limit"):
        assert part in str(error)
