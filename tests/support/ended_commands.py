"""The command line as a process that ends by itself."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.log_lines import server_tracebacks
from tests.support.warm_start import run_command, starts

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
        done = run_command(*arguments, timeout=DEADLINE_S, **options)
        assert not server_tracebacks(done.stderr)
        return done

    return run
