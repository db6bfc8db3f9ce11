"""Whether a front end that does not answer is at fault: it is judged by its own time, never by the clock's."""

import os

import pytest

from pybackend.frontend.remote.processes import BUSY_S, Attention

TICKS = os.sysconf("SC_CLK_TCK")


def verdicts(states: bytes, ticks: list[int]) -> set[str]:
    attention = Attention()
    return {attention.verdict(bytes([state]), each) for state, each in zip(states, ticks, strict=True)}


def test_one_that_gets_no_core_is_not_at_fault() -> None:
    """It wants to run, and is not let; or it is, now and then."""
    assert verdicts(b"R" * 1000, [0] * 1000) == {""}
    assert verdicts(b"RS" * 500, [number // 100 for number in range(1000)]) == {""}
    assert verdicts(b"D" * 1000, [0] * 1000) == {""}


def test_one_that_is_stopped_for_a_moment_is_not_at_fault() -> None:
    assert verdicts(b"TTTTTTTTTR" * 10, [0] * 100) == {""}


@pytest.mark.parametrize(
    ("states", "ticks", "fault"),
    [
        (b"T" * 10, [0] * 10, "it has been stopped for 10 s"),
        (b"S" * 31, [0] * 31, "it has slept for 30 s without listening to the server"),
        (b"RR", [0, int(BUSY_S * TICKS) + 1], "it has worked for 10 s of CPU time without listening to the server"),
    ],
)
def test_one_that_could_answer_is_at_fault(states: bytes, ticks: list[int], fault: str) -> None:
    assert fault in verdicts(states, ticks)
