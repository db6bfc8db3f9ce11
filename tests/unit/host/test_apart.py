"""Work on authors' files beside the event loop: what hangs there keeps nobody waiting."""

import asyncio
import subprocess
import sys
import threading

import pytest

from pybackend import apart as module
from pybackend.apart import apart
from pybackend.errors import ModelLoadError


def test_what_it_returns_and_raises():
    async def run() -> None:
        assert await apart("x", divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await apart("x", divmod, 7, 0)

    asyncio.run(run())


def test_more_that_hang_than_there_are_places_let_others_pass(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    never = threading.Event()

    async def run() -> None:
        hanging = [asyncio.ensure_future(apart("x", never.wait)) for _ in range(3 * module._AT_ONCE)]
        assert await asyncio.wait_for(apart("x", divmod, 7, 2), 60) == (3, 1)
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    try:
        asyncio.run(run())
    finally:
        never.set()


def test_few_work_at_once():
    working, most, lock = 0, 0, threading.Lock()
    full = threading.Barrier(module._AT_ONCE)

    def work() -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        full.wait(60)
        with lock:
            working -= 1

    async def run() -> None:
        await asyncio.gather(*(apart("x", work) for _ in range(4 * module._AT_ONCE)))

    asyncio.run(run())
    assert most == module._AT_ONCE


def test_what_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    never = threading.Event()

    async def run() -> None:
        with pytest.raises(ModelLoadError, match=r"reading the files of 'm' has taken longer than 0\.05 s"):
            await apart("the files of 'm'", never.wait)

    try:
        asyncio.run(run())
    finally:
        never.set()


def test_a_process_ends_although_something_hangs():
    code = (
        "import asyncio, threading\n"
        "from pybackend.apart import apart\n"
        "async def main():\n"
        "    hanging = asyncio.ensure_future(apart('x', threading.Event().wait))\n"
        "    await apart('x', int)\n"
        "    hanging.cancel()\n"
        "asyncio.run(main())\n"
        "print('over')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")
