"""Changes of models: one at a time per name, few loads in all, and none that waits for itself."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pybackend.errors import InferenceError
from pybackend.repository.changes import ModelLocks


class Changes:
    """Changes that go on until they are told to end."""

    def __init__(self, locks: ModelLocks) -> None:
        self.locks = locks
        self._ends: dict[str, asyncio.Event] = {}
        self.under_way: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, label: str, name: str, *, asked_by: str = "", load: bool = True) -> None:
        self._ends[label] = asyncio.Event()
        self.tasks.append(asyncio.create_task(self._run(label, name, asked_by, load)))
        await self.settle()

    async def _run(self, label: str, name: str, asked_by: str, load: bool) -> None:
        lock = self.locks.loading if load else self.locks.changing
        async with lock(name, asked_by):
            self.under_way.append(label)
            await self._ends[label].wait()
            self.under_way.remove(label)

    async def end(self, label: str) -> None:
        self._ends[label].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def changes_of(most_loads: int, check) -> None:
    async def main():
        locks = ModelLocks(most_loads)
        changes = Changes(locks)
        try:
            await check(changes)
        finally:
            for task in changes.tasks:
                task.cancel()
            await asyncio.gather(*changes.tasks, return_exceptions=True)
        assert (locks._locks, locks._waits) == ({}, [])

    asyncio.run(main())


def test_changes_of_one_model_come_one_after_the_other():
    async def check(changes):
        await changes.start("first", "a")
        await changes.start("second", "a", load=False)
        await changes.start("third", "a")
        assert changes.under_way == ["first"]
        await changes.end("first")
        assert changes.under_way == ["second"]
        await changes.end("second")
        assert changes.under_way == ["third"]

    changes_of(4, check)


def test_as_many_loads_at_a_time_as_are_allowed():
    async def check(changes):
        for name in "abc":
            await changes.start(name, name)
        assert changes.under_way == ["a", "b"]
        await changes.start("unload", "d", load=False)  # which takes no time, and no place
        assert changes.under_way == ["a", "b", "unload"]
        await changes.end("a")
        assert changes.under_way == ["b", "unload", "c"]

    changes_of(2, check)


def test_a_load_that_another_one_waits_for_needs_no_place():
    async def check(changes):
        await changes.start("a", "a")
        await changes.start("b", "b")  # has neither the place nor b's lock
        await changes.start("nested", "b", asked_by="a")
        assert changes.under_way == ["a", "nested"]
        await changes.end("nested")
        await changes.end("a")
        assert changes.under_way == ["b"]

    changes_of(1, check)


@pytest.mark.parametrize("load", [True, False])
def test_nobody_waits_for_itself(load):
    async def check(changes):
        locks = changes.locks
        await changes.start("a", "a")
        await changes.start("b", "b", asked_by="a")
        await changes.start("c", "c", asked_by="b")
        await changes.start("d", "d", asked_by="b")
        lock = locks.loading if load else locks.changing
        for asked_by, circle in (("c", "c -> a -> b -> c"), ("d", "d -> a -> b -> d"), ("a", "a -> a")):
            with pytest.raises(InferenceError) as refused:
                async with lock("a", asked_by):
                    pass
            assert circle in refused.value.message
            assert refused.value.message.startswith(f"model '{asked_by}' would wait for itself: ")
        async with AsyncExitStack() as held:  # what is no circle goes on
            await held.enter_async_context(lock("e", "c"))
            await held.enter_async_context(lock("f", "c"))

    changes_of(1, check)
