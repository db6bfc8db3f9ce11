"""The account of bytes that are buffered for clients: its limit holds, and slow clients are dropped, the slowest first."""

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.flow import (
    SLOW_AFTER_SECONDS,
    SLOW_RATE_BYTES_PER_S,
    UNCOUNTED_BYTES,
    ClientBytes,
    ClientMemory,
)

MIB = 1 << 20


class Connection:
    """A client that moves so many bytes in a second."""

    unread = arriving = ()

    def __init__(self, account, rate_bytes_per_s=SLOW_RATE_BYTES_PER_S):
        self.flow = ClientBytes(self, account)
        self.flow.pace.advance(SLOW_AFTER_SECONDS, SLOW_AFTER_SECONDS * rate_bytes_per_s)
        self.is_open = True

    def holds(self, mib):
        """Whether the account lets it hold so much."""
        try:
            self.flow.hold(mib * MIB)
        except InferenceError:
            return False
        return True

    def drop(self):
        self.is_open = False


@pytest.fixture
def account():
    return ClientMemory(100 * MIB)


def test_amounts_replace_each_other(account):
    one, other = Connection(account), Connection(account)
    assert one.holds(60)
    assert other.holds(40)
    assert not one.holds(61)
    assert account.used_bytes == 100 * MIB
    assert one.holds(10)
    assert other.holds(90)
    assert one.holds(0)
    assert other.holds(0)
    assert account.used_bytes == 0


def test_small_amounts_do_not_count(account):
    connection = Connection(account)
    connection.flow.hold(UNCOUNTED_BYTES)
    assert account.used_bytes == 0
    connection.flow.hold(UNCOUNTED_BYTES + 1)
    assert account.used_bytes == UNCOUNTED_BYTES + 1
    connection.flow.close()
    assert account.used_bytes == 0
    connection.flow.hold(UNCOUNTED_BYTES + 2)  # what ends late finds nobody any more
    assert account.used_bytes == 0


def test_fast_clients_keep_what_they_have(account):
    fast, taker = Connection(account), Connection(account)
    fast.holds(60)
    assert not taker.holds(50)
    assert fast.is_open
    assert account.used_bytes == 60 * MIB


def test_slow_clients_are_dropped_the_slowest_first(account):
    slow, slower, slowest = (Connection(account, rate) for rate in (30, 20, 10))
    for connection in (slower, slowest, slow):
        connection.holds(30)
    assert Connection(account).holds(70)
    assert [each.is_open for each in (slow, slower, slowest)] == [True, False, False]
    assert account.used_bytes == 100 * MIB


def test_a_slow_client_does_not_close_itself(account):
    slow = Connection(account, 0)
    slow.holds(60)
    assert not slow.holds(101)
    assert slow.is_open
    assert account.used_bytes == 60 * MIB


def test_giving_back_closes_nobody(account):
    slow, taker = Connection(account, 0), Connection(account)
    slow.holds(50)
    taker.holds(50)
    account.limit_bytes = 10 * MIB
    assert taker.holds(20)
    assert slow.is_open


def test_the_error_names_the_limit(account):
    Connection(account).holds(60)
    error = account.error(50)
    assert error.code is ErrorCode.UNAVAILABLE
    for part in (f"{60 * MIB} bytes", "50 more", f"limit of {100 * MIB}", "--http-memory-limit"):
        assert part in str(error)
