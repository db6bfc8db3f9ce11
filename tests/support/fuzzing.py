"""How many examples a test of garbage tries: few in every run of the tests, as many as wanted with
``make fuzz TIMES=100``.

Every run of the tests tries the same examples; ``make fuzz`` tries new ones each time.
"""

import os

from hypothesis import settings

SEARCHING = "FUZZ_TIMES" in os.environ
TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int) -> settings:
    """Settings of hypothesis for so many examples, times what the person who runs it wants."""
    return settings(max_examples=count * TIMES)
