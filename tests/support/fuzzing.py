"""How many examples a test of garbage tries: few in every run of the tests, as many as wanted with ``make fuzz TIMES=100``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int) -> settings:
    """Settings of hypothesis for so many examples, times what the person who runs it wants."""
    return settings(max_examples=count * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
