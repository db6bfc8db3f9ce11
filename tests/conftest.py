"""What every test of the project shares: skips that name what is missing, bytecode, and a look for leftover processes."""

import gc
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.fuzzing import SEARCHING
from tests.support.warm_start import end_forker, starts

pytest_plugins = [
    "tests.support.durations",
    "tests.support.ended_commands",
    "tests.support.fresh_fixtures",
    "tests.support.thorough",
]

_ENDING_S = 30.0

_KINDS = {
    "faults": "faults",
    "gpu": "gpu",
    **dict.fromkeys(("e2e", "addons", "bind", "client", "testing", "tools"), "e2e"),
}
"""The marks of the tests in a folder."""

# Container images often set this to stay small. Here it would compile the whole server again for each of a thousand
# processes that tests start: a third of what such a process costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell ignores Ctrl-C for its background jobs, and so would each program that tests start, and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The threads of OpenBLAS, which start with numpy, look for work without a pause for a tenth of a second before they
# sleep.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# A property is tried with the same examples in every run, or a new one could stop a change that has nothing to do with
# it; `make fuzz` looks for new ones. One example may take long because the machine is busy with other things.
settings.register_profile(
    "tests", derandomize=not SEARCHING, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collection makes a million objects that live as long as the process: the garbage collector need not look at them.

    Else each ``gc.collect()`` of a test takes most of a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Snapshots are written as ``tests/support/snapshots.py`` says."""
    renewed = getattr(config.option, "update_snapshots", False)
    config.option.default_extension = f"tests.support.snapshots.{'AllTexts' if renewed else 'Texts'}"


def _has_cuda_device() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder's kind; skip those marked ``torch``, ``gpu``, ``around`` or ``one_process`` where
    there is none."""
    missing = {}
    if importlib.util.find_spec("torch") is None:
        missing["torch"] = pytest.mark.skip(reason="torch is not installed")
    if not _has_cuda_device():
        missing["gpu"] = pytest.mark.skip(reason="there is no CUDA device")
    if os.environ.get("PYBACKEND_FRONT_ENDS", "0") != "0":
        missing["one_process"] = pytest.mark.skip(reason="front ends in processes of their own do it otherwise")
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if kind := _KINDS.get(folder):
            item.add_marker(kind)
        for (package,) in (mark.args for mark in item.iter_markers("around")):
            if importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"{package} is not here: make test-packages runs it"))
        for name, skip in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


def _children() -> dict[int, str]:
    """The live child processes of this one: pid -> command line."""
    found = {}
    for pid in _child_pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[pid] = command.strip() or "(zombie)"
    return found


def _child_pids() -> list[int]:
    while True:
        try:
            lists = [(thread / "children").read_text() for thread in Path("/proc/self/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread has ended meanwhile, and its children are now those of another
        return [int(pid) for text in lists for pid in text.split()]


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ChildProcessError):  # its own parent was quicker
            os.waitpid(pid, os.WNOHANG)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_behind() -> object:
    """Whatever a test starts has ended soon after the last test of this process.

    A process that ends after the event loop of its engine has nobody else to reap it. One helper of the standard
    library lives as long as its interpreter, by design.
    """
    before = _children()
    with starts(warm=True):
        yield
    end_forker()
    deadline_s = time.monotonic() + _ENDING_S
    while True:
        left = {pid: command for pid, command in _children().items() if pid not in before}
        left = {pid: command for pid, command in left.items() if "multiprocessing.resource_tracker" not in command}
        if not left or time.monotonic() > deadline_s:
            break
        _reap(left)
        threading.Event().wait(0.05)
    assert not left, f"tests of process {os.getpid()} left these behind: {left}"
