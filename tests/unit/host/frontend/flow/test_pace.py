"""When a client has stalled, and when it is slow: told by seconds that the caller counts, not by a clock."""

import socket

import pytest

from pybackend.frontend.flow import (
    LOWEST_RATE_BYTES_PER_S,
    SLOW_AFTER_SECONDS,
    SLOW_RATE_BYTES_PER_S,
    STALLED_SECONDS,
    Pace,
    kernel_unsent_bytes,
)


def advanced(seconds, bytes_per_s, pace=None):
    pace = pace or Pace()
    for _ in range(seconds):
        pace.advance(1, bytes_per_s)
    return pace


def test_a_client_that_does_nothing_stalls_after_a_minute():
    assert not advanced(STALLED_SECONDS - 1, 0).has_stalled
    assert advanced(STALLED_SECONDS, 0).has_stalled


def test_a_client_that_keeps_the_lowest_rate_never_stalls():
    pace = advanced(10 * STALLED_SECONDS, LOWEST_RATE_BYTES_PER_S)
    assert not pace.has_stalled
    assert pace.is_slow


def test_half_the_lowest_rate_takes_twice_the_time():
    pace = advanced(2 * STALLED_SECONDS - 1, LOWEST_RATE_BYTES_PER_S // 2)
    assert not pace.has_stalled
    assert advanced(1, LOWEST_RATE_BYTES_PER_S // 2, pace).has_stalled


def test_what_came_early_does_not_pay_for_a_pause():
    pace = advanced(1, 1_000_000_000)
    assert advanced(STALLED_SECONDS, 0, pace).has_stalled


def test_who_was_behind_can_catch_up():
    pace = advanced(STALLED_SECONDS - 1, 0)
    pace.advance(1, STALLED_SECONDS * LOWEST_RATE_BYTES_PER_S)
    assert pace.behind_s == 0


@pytest.mark.parametrize(
    ("seconds", "rate", "is_slow"),
    [
        (SLOW_AFTER_SECONDS - 1, 0, False),
        (SLOW_AFTER_SECONDS, 0, True),
        (SLOW_AFTER_SECONDS, SLOW_RATE_BYTES_PER_S - 1, True),
        (SLOW_AFTER_SECONDS, SLOW_RATE_BYTES_PER_S, False),
    ],
)
def test_slow(seconds, rate, is_slow):
    assert advanced(seconds, rate).is_slow == is_slow


def test_a_rate_is_forgotten_little_by_little():
    pace = advanced(SLOW_AFTER_SECONDS, 4 * SLOW_RATE_BYTES_PER_S)
    pace.advance(1, 0)
    assert not pace.is_slow
    assert advanced(SLOW_AFTER_SECONDS, 0, pace).is_slow


def test_a_burst_buys_five_seconds():
    pace = advanced(SLOW_AFTER_SECONDS, 0)
    pace.advance(1, 1_000_000_000)
    assert not advanced(SLOW_AFTER_SECONDS - 1, 0, pace).is_slow
    assert advanced(1, 0, pace).is_slow


def test_a_rest_begins_anew():
    pace = advanced(STALLED_SECONDS, 0)
    pace.rest()
    assert not pace.has_stalled
    assert not pace.is_slow


def test_bytes_that_the_peer_has_not_taken():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert kernel_unsent_bytes(ours.fileno()) == 0
        ours.send(b"x" * 1000)
        assert kernel_unsent_bytes(ours.fileno()) >= 1000
        theirs.recv(1000)
        assert kernel_unsent_bytes(ours.fileno()) == 0
        descriptor = ours.fileno()
    assert kernel_unsent_bytes(descriptor) == 0
