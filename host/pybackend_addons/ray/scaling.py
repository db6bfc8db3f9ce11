"""The signal that servers are too few: how long requests wait for each second of computing, over all of them.

The metrics have both times; Prometheus and Ray Serve decide by the same numbers.
"""

WAITING = "nv_inference_queue_duration_us"
COMPUTING = "nv_inference_compute_infer_duration_us"

TARGET = 0.5
"""A server with room is near 0. Above this, servers are added."""

_LEAST = 1.0
"""Of computing, in microseconds for each second: nothing waits for a server that does nothing."""


def waiting_share(waiting: float, computing: float) -> float:
    """The seconds of waiting for each second of computing. The arguments: both times since the same moment."""
    return waiting / max(computing, _LEAST)


def waiting_query(selector: str) -> str:
    """The same for Prometheus. ``selector``: of the servers' samples, such as ``pod=~"name-.*"``."""
    waiting, computing = (f"sum(rate({name}{{{selector}}}[1m]))" for name in (WAITING, COMPUTING))
    return f"{waiting} / clamp_min({computing}, {_LEAST:g})"


def wanted_servers(present: int, share: float, target: float) -> float:
    """How many servers bring the share to its target.

    A small share says that there is room, not how much: one goes at a time.
    """
    return max(present * share / target, present - 1)
