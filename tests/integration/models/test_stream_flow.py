"""Clients that take their time, or go away: models that wait, models that are told, requests that are never run."""

import asyncio
import time

import pytest

from pybackend_wire.messages import STREAM_WINDOW
from tests.support.gates import wait_until
from tests.support.streams import DROPPED, END, contents, quiet, reached


def test_pause_keeps_the_model_waiting(lab, request):
    """What a slow client has not taken is not produced, and so needs no memory."""
    name = request.node.name
    code = f"""
        for i in range(100):
            sender.send(out(*[i] * 250_000))
            mark(state["directory"], "{name}")
        sender.send(flags=FINAL)
    """
    produced = lab.directory / name

    async def watch():
        stream = lab.stream(code)
        got = [await stream.next()]
        stream.pending.pause()
        answered = await lab.stream("sender.send(flags=FINAL)", model="pair").rest()  # the loop goes on
        assert answered == [END]
        await quiet(lambda: produced.stat().st_size)
        stopped = produced.stat().st_size
        assert stopped < 90
        assert stream.count <= stopped + 1
        stream.pending.resume()
        return got + await stream.rest()

    answers = lab.run(watch())
    assert [answer.out[0] for answer in answers[:-1]] == list(range(100))
    assert answers[-1] == END


def test_a_model_runs_ahead_of_a_busy_server_by_a_window(lab, gate):
    """The event loop stands still: the server takes no response, and can stop nobody."""
    produced = lab.directory / "ahead"
    code = f"""
        {gate.here}
        for i in range(1000):
            sender.send(out(i))
            mark(state["directory"], "ahead")
        sender.send(flags=FINAL)
    """

    async def watch():
        stream = lab.stream(code)
        await reached(gate)
        gate.open()
        wait_until(lambda: produced.exists() and produced.stat().st_size >= STREAM_WINDOW, "the model sends nothing")
        seen = [0]
        while len(set(seen[-10:])) > 1 or len(seen) < 10:  # until it has stopped
            time.sleep(0.02)  # noqa: ASYNC251  the event loop must stand still
            seen.append(produced.stat().st_size)
        assert seen[-1] == STREAM_WINDOW
        return await stream.rest()

    assert contents(lab.run(watch())) == [[i] for i in range(1000)]


def test_pause_and_resume_often(lab):
    async def watch():
        stream = lab.stream("for i in range(300): sender.send(out(i))\nsender.send(flags=FINAL)")
        answers = []
        while not answers or not answers[-1].final:
            stream.pending.pause()
            stream.pending.pause()
            while stream.has_more():
                answers.append(await stream.next())
            stream.pending.resume()
            stream.pending.resume()
            if not answers or not answers[-1].final:
                answers.append(await stream.next())
        return answers

    assert contents(lab.run(watch())) == [[i] for i in range(300)]


def test_pause_holds_up_no_other_request(lab):
    async def watch():
        code = """
            def work():
                for i in range(1000):
                    sender.send(out(i))
                sender.send(flags=FINAL)
            in_thread(work)
        """
        paused, other = lab.stream(code), lab.stream(code)
        await paused.next()
        paused.pending.pause()
        assert len(await other.rest()) == 1001
        paused.pending.resume()
        return 1 + len(await paused.rest())

    assert lab.run(watch()) == 1001


def test_an_offer_does_not_wait_for_a_paused_client(lab):
    """One thread can serve many streams: what a slow client does not take stays with the model."""

    async def watch():
        code = """
            from pybackend_sdk.backend import offer

            sent = refused = 0
            while not refused:
                if offer(sender, out(sent)):
                    sent += 1
                else:
                    refused = 1
            mark(state["directory"], "refused")
            while not offer(sender, out(-1)):
                pass
            sender.send(out(sent), FINAL)
        """
        stream = lab.stream(code)
        first = await stream.next()
        stream.pending.pause()
        await asyncio.to_thread(wait_until, (lab.directory / "refused").exists, "the offer is refused")
        stream.pending.resume()
        return contents([first, *await stream.rest()])

    *offered, again, [sent] = lab.run(watch())
    assert offered == [[number] for number in range(sent)]
    assert again == [-1]


def test_cancel_lets_a_paused_model_go_on(lab):
    async def watch():
        code = """
            sent = 0
            while not sender.is_cancelled():
                sender.send(out(sent))
                sent += 1
            sender.send(failed("cancelled", pb_utils.TritonError.CANCELLED), FINAL)
        """
        stream = lab.stream(code)
        await stream.next()
        stream.pending.pause()
        await asyncio.sleep(0.1)
        stream.pending.cancel()
        return (await stream.rest())[-1]

    end = lab.run(watch())
    assert (end.error, end.code) == ("cancelled", "CANCELLED")


def test_a_dropped_sender_does_not_wait_for_a_paused_client(lab):
    """The collector, which may run anywhere, must not be what waits."""

    async def watch():
        stream = lab.stream('state["kept"] = sender\nsender.send(out(1))')
        await stream.next()
        stream.pending.pause()
        answers = await lab.stream('del state["kept"]\nsender.send(out(2), FINAL)').rest()
        assert contents(answers) == [[2]]
        return await stream.next()

    assert lab.run(watch()).error.startswith(DROPPED)


def test_pause_before_it_began(lab, gate, request):
    """A client that has no room for more need not wait for the first response to say so."""
    name = request.node.name
    code = f"""
        for i in range(50):
            sender.send(out(i))
            mark(state["directory"], "{name}")
        sender.send(flags=FINAL)
    """

    async def watch():
        busy = lab.stream(f"{gate.here}\nsender.send(flags=FINAL)")
        await reached(gate)
        stream = lab.stream(code)
        stream.pending.pause()
        gate.open()
        await busy.rest()
        await lab.stream("sender.send(flags=FINAL)", model="pair").rest()
        await asyncio.sleep(0.2)
        assert not (lab.directory / name).exists()
        assert not stream.has_more()
        stream.pending.resume()
        return await stream.rest()

    assert contents(lab.run(watch())) == [[i] for i in range(50)]


def test_what_was_paused_at_the_end_is_forgotten(lab):
    """The process does not keep a note for each request whose client was slow."""
    waits = "gc.collect()\nsender.send(out(sum(type(o).__name__ == 'Waiter' for o in gc.get_objects())), FINAL)"

    async def watch():
        ((before,),) = contents(await lab.stream(waits).rest())
        for _ in range(50):
            stream = lab.stream("sender.send(out(1))\ntime.sleep(0.005)\nsender.send(out(2), FINAL)")
            await stream.next()
            stream.pending.pause()  # the final response is on its way
            await stream.rest()
        ((after,),) = contents(await lab.stream(waits).rest())
        assert after <= before + 2

    lab.run(watch())


# Cancellation


@pytest.mark.spec("pb-C01")
def test_cancelled_while_it_runs(lab, gate):
    code = f"""
        before = (request.is_cancelled(), sender.is_cancelled())
        {gate.here}
        while not request.is_cancelled():
            pass
        sender.send(text(before, sender.is_cancelled(), request.is_cancelled()))
        sender.send(failed("as you wish", pb_utils.TritonError.CANCELLED), FINAL)
    """

    async def watch():
        stream = lab.stream(code)
        await reached(gate)
        stream.pending.cancel()
        stream.pending.cancel()  # once more does nothing
        gate.open()
        return await stream.rest()

    said, last = lab.run(watch())
    assert said.text == ["(False, False)", "True", "True"]
    assert (last.error, last.code) == ("as you wish", "CANCELLED")


@pytest.mark.spec("pb-C01")
def test_cancelled_after_execute_has_returned(lab):
    async def watch():
        code = """
            def work():
                while not sender.is_cancelled():
                    sender.send(out(1))
                    time.sleep(0.001)
                sender.send(text("cancelled"), FINAL)
            in_thread(work)
        """
        stream = lab.stream(code)
        await stream.next()
        stream.pending.cancel()
        return (await stream.rest())[-1]

    assert lab.run(watch()).text == ["cancelled"]


@pytest.mark.spec("pb-C01")
def test_cancelled_before_it_began(lab, gate):
    """It is dropped: the model never sees it."""

    async def watch():
        busy = lab.stream(f'state["ran"] = 0\n{gate.here}\nsender.send(flags=FINAL)')
        await reached(gate)
        waiting = [lab.stream('state["ran"] += 1\nsender.send(out(1), FINAL)') for _ in range(10)]
        await asyncio.sleep(0)
        for stream in waiting[::2]:
            stream.pending.cancel()
        dropped = [await stream.rest() for stream in waiting[::2]]
        gate.open()
        assert [contents(await stream.rest()) for stream in waiting[1::2]] == [[[1]]] * 5
        await busy.rest()
        assert contents(await lab.stream('sender.send(out(state["ran"]), FINAL)').rest()) == [[5]]
        return dropped

    for (answer,) in lab.run(watch()):
        assert (answer.error, answer.code) == ("the client cancelled the request", "CANCELLED")


@pytest.mark.spec("pb-C01")
def test_cancelled_while_it_waits_in_the_process(lab, gate):
    """Work may be sent ahead of short executions; when one turns out to be long, what is cancelled is not run."""
    quick = "sender.send(flags=FINAL)"

    async def watch():
        for _ in range(20):  # now executions are known to be short
            await lab.stream(quick).rest()
        busy = lab.stream(f'state["ran"] = 0\n{gate.here}\nsender.send(flags=FINAL)')
        waiting = [lab.stream('state["ran"] += 1\nsender.send(out(1), FINAL)') for _ in range(10)]
        await reached(gate)
        for stream in waiting:
            stream.pending.cancel()
        for stream in waiting:  # they are answered while the other one still runs
            (answer,) = await stream.rest()
            assert answer.code == "CANCELLED"
        gate.open()
        await busy.rest()
        return contents(await lab.stream('sender.send(out(state["ran"]), FINAL)').rest())

    assert lab.run(watch()) == [[0]]


def test_cancel_after_the_end_does_nothing(lab):
    async def watch():
        stream = lab.stream("sender.send(out(1), FINAL)")
        assert contents(await stream.rest()) == [[1]]
        for act in (stream.pending.cancel, stream.pending.pause, stream.pending.resume):
            act()
        await lab.stream("sender.send(out(1), FINAL)").rest()
        assert not stream.has_more()
        assert stream.count == 1

    lab.run(watch())


def test_responses_to_a_cancelled_request_still_come(lab):
    """The model decides how it ends; it need not look."""

    async def watch():
        stream = lab.stream("for i in range(200): sender.send(out(i)); time.sleep(0.001)\nsender.send(flags=FINAL)")
        await stream.next()
        stream.pending.cancel()
        return await stream.rest()

    answers = lab.run(watch())
    assert len(answers) == 200
    assert answers[-1] == END
