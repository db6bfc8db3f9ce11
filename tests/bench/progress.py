"""What a person watching the benchmark sees while it runs: one line per measurement, on standard error."""

import sys


def show(line: str) -> None:
    """Print a line at once; standard output stays free for the tables."""
    print(line, file=sys.stderr, flush=True)
