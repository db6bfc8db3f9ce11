"""Long work in slices: one per turn of the loop, each work in its turn."""

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


def test_a_connection_with_much_work_has_one_turn_among_the_others():
    async def check():
        shared, done = Slices(), []
        ended = asyncio.Event()
        busy, idle = Slices(shared), Slices(shared)

        def work(name):
            def step():
                done.append(name)
                if len(done) == 6:
                    ended.set()
                return False

            return step

        for number in range(4):
            busy.add(work(number))
        idle.add(work("a"))
        idle.add(work("b"))
        await ended.wait()
        assert done == [0, "a", 1, "b", 2, 3]

    asyncio.run(check())
