"""Long work in slices: one per turn of the loop, each work in its turn."""

from __future__ import annotations

import asyncio

from pybackend.frontend.slices import Slices


def test_one_slice_per_turn():
    async def check():
        slices, done, turns = Slices(), [], 0
        ended = asyncio.Event()

        def work(name, count):
            def step():
                done.append((turns, name))
                more = sum(each == name for _, each in done) < count
                if not more and len(done) == 9:
                    ended.set()
                return more

            return step

        def turn():
            nonlocal turns
            turns += 1
            if not ended.is_set():
                loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        for name, count in (("a", 2), ("b", 4), ("c", 3)):
            slices.add(work(name, count))
        await ended.wait()
        assert [name for _, name in done] == list("abcabcbcb")
        assert len({number for number, _ in done}) == len(done)

    asyncio.run(check())


def test_work_may_add_work():
    async def check():
        slices, done = Slices(), asyncio.Event()

        def first():
            slices.add(lambda: done.set() or False)
            return False

        slices.add(first)
        await done.wait()

    asyncio.run(check())
