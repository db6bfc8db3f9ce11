"""What ends unexpectedly is in the log, and what is done every second goes on being done."""

import asyncio

from pybackend.observability.unexpected import log_unexpected, repeat


def fail():
    raise OSError("no descriptor left")


def test_callbacks_and_tasks_that_nobody_waits_for(caplog):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unexpected)
        loop.call_soon(fail)

        async def task():
            fail()

        _ = await asyncio.wait({loop.create_task(task(), name="the lost one")})

    asyncio.run(main())
    callback, task = caplog.records
    assert "Exception in callback fail()" in callback.getMessage()
    assert "the lost one" in task.getMessage()
    assert {record.name for record in caplog.records} == {"pybackend.observability.unexpected"}
    assert all(isinstance(record.exc_info[1], OSError) for record in caplog.records)


def test_what_is_repeated_goes_on(caplog):
    async def main():
        rounds = asyncio.Queue()
        task = asyncio.create_task(repeat(0, fail, lambda: rounds.put_nowait(None)))
        async with asyncio.timeout(60):
            for _ in range(3):
                await rounds.get()
        task.cancel()

    asyncio.run(main())
    assert "fail failed and is retried in 0 s" in caplog.text
