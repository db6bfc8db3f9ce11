"""When an instance whose process has died is started again."""

import asyncio

from pybackend.instance.model_instance import HEALTHY_AFTER_S, LONGEST_BACKOFF_S, RestartBackoff


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def waits(backoff: RestartBackoff) -> bool:
    """True if the next attempt is not due after some turns of the loop."""
    task = asyncio.create_task(backoff.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    waited = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return waited


def test_an_instance_that_was_given_up_is_hurried_only_now_and_then() -> None:
    async def scenario() -> None:
        clock = Clock()
        backoff = RestartBackoff(1, 3600, clock)
        backoff.hurry()  # it is not given up: nothing happens
        await backoff.wait()
        assert backoff.is_over
        assert backoff.prospect.endswith("it is tried again in 3600 s, or at the next request.")
        first = asyncio.create_task(backoff.wait())
        await asyncio.sleep(0)
        backoff.hurry()
        await first
        assert backoff.restarts == 2
        clock.now_s += LONGEST_BACKOFF_S - 1
        second = asyncio.create_task(backoff.wait())
        await asyncio.sleep(0)
        backoff.hurry()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not second.done()
        clock.now_s += 1
        backoff.hurry()
        await second

    asyncio.run(scenario())


def test_a_long_life_makes_up_for_everything() -> None:
    async def scenario() -> None:
        clock = Clock()
        backoff = RestartBackoff(1, 3600, clock)
        await backoff.wait()
        backoff.on_ready()
        clock.now_s += HEALTHY_AFTER_S + 1
        backoff.on_death()
        assert (backoff.is_over, backoff.restarts) == (False, 0)
        assert not await waits(backoff)
        backoff.on_ready()
        backoff.on_death()
        assert backoff.is_over
        assert await waits(backoff)

    asyncio.run(scenario())
