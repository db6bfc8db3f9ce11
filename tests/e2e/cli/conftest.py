"""The command line as a process that ends by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.log_lines import server_tracebacks
from tests.support.warm_start import starts

DEADLINE_S = 60


@pytest.fixture
def whole_starts() -> Iterator[None]:
    """Servers start from the command line, with all of their imports."""
    with starts(warm=False):
        yield


@pytest.fixture
def pybackend() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``pybackend`` with arguments to its end; whatever it says, it never shows a traceback of its own."""

    def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pybackend", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            **options,
        )
        assert not server_tracebacks(done.stderr)
        return done

    return run
