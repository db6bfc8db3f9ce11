"""Responses that leave by senders, one by one, as the engine's callers get them: how many, in which order, how they
end."""

import asyncio
import os
import signal

import numpy as np
import pytest

from tests.support.streams import DROPPED, END, contents, reached

CLOSED = "Unable to send response. Response sender has been closed."


# How many, and in which order


@pytest.mark.spec("pb-D01")
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_any_number_of_responses(lab, count):
    answers = lab.responses(f"for i in range({count}): sender.send(out(i))\nsender.send(flags=FINAL)")
    assert [answer.out for answer in answers[:-1]] == [[i] for i in range(count)]
    assert answers[-1] == END
    assert not any(answer.final for answer in answers[:-1])


@pytest.mark.spec("pb-D01")
def test_final_flag_with_a_response(lab):
    first, second = lab.responses("sender.send(out(1))\nsender.send(out(2), FINAL)")
    assert (first.out, first.final) == ([1], False)
    assert (second.out, second.final, second.empty) == ([2], True, False)


@pytest.mark.spec("pb-D01")
def test_responses_arrive_while_execute_runs(lab, gate):
    async def watch():
        stream = lab.stream(f"sender.send(out(1))\n{gate.here}\nsender.send(out(2), FINAL)")
        first = await stream.next()
        await reached(gate)
        assert not stream.has_more()
        gate.open()
        return [first, *await stream.rest()]

    assert contents(lab.run(watch())) == [[1], [2]]


@pytest.mark.spec("pb-D01")
def test_responses_after_execute_has_returned(lab, gate):
    async def watch():
        code = f"""
            def later():
                {gate.here}
                for i in range(3):
                    sender.send(out(i))
                sender.send(flags=FINAL)
            in_thread(later)
        """
        late = lab.stream(code)
        await reached(gate)
        # The instance is free: requests that come later are answered before.
        assert contents(await lab.stream("sender.send(out(7), FINAL)").rest()) == [[7]]
        assert not late.has_more()
        gate.open()
        return await late.rest()

    assert contents(lab.run(watch())) == [[0], [1], [2]]


@pytest.mark.spec("pb-D01")
def test_requests_are_answered_in_any_order(lab):
    async def watch():
        keep = 'state.setdefault("kept", []).append((sender, array(request, "IN")[0]))'
        kept = [lab.stream(keep, inputs={"IN": np.array([i], np.int32)}) for i in range(5)]
        release = """
            for waiting, value in reversed(state.pop("kept")):
                waiting.send(out(value))
                waiting.send(flags=FINAL)
            sender.send(flags=FINAL)
        """
        assert await lab.stream(release).rest() == [END]
        return [contents(await stream.rest()) for stream in kept]

    assert lab.run(watch()) == [[[i]] for i in range(5)]


@pytest.mark.spec("pb-D01")
def test_one_sender_in_many_threads(lab):
    threads, each = 32, 40
    answers = lab.responses(f"""
        def work(number):
            for i in range({each}):
                sender.send(out(number, i))
        threads = [in_thread(work, number) for number in range({threads})]
        for thread in threads:
            thread.join()
        sender.send(flags=FINAL)
    """)
    assert answers[-1] == END
    got = [tuple(answer.out) for answer in answers[:-1]]
    assert len(got) == threads * each
    for number in range(threads):  # what one thread sends arrives in its order
        assert [i for thread, i in got if thread == number] == list(range(each))


def test_many_requests_answered_by_many_threads_at_once(lab):
    code = """
        def work():
            value = array(request, "IN")[0]
            for i in range(5):
                sender.send(out(value, *[i] * 3000))  # too large for the frame
            sender.send(flags=FINAL)
        in_thread(work)
    """

    async def watch():
        streams = [lab.stream(code, inputs={"IN": np.array([i], np.int32)}) for i in range(100)]
        return [await stream.rest() for stream in streams]

    for number, answers in enumerate(lab.run(watch())):
        assert contents(answers) == [[number] + [i] * 3000 for i in range(5)]


def test_two_instances_stream_at_once(lab):
    async def watch():
        code = "for _ in range(20): sender.send(text(os.getpid())); time.sleep(0.005)\nsender.send(flags=FINAL)"
        both = [lab.stream(code, model="pair") for _ in range(2)]
        return [await stream.rest() for stream in both]

    pids = [{answer.text[0] for answer in answers[:-1]} for answers in lab.run(watch())]
    assert [len(one) for one in pids] == [1, 1]
    assert pids[0] != pids[1]


# Errors


@pytest.mark.spec("pb-D02")
@pytest.mark.parametrize("returned", ["[]", "[out(1)]", "out(1)", "[None]", "False"])
def test_a_decoupled_model_may_return_nothing(lab, returned):
    (answer,) = lab.responses(f"return {returned}")
    assert answer.final
    assert answer.error.startswith(
        "Failed to process the request(s) for model 'streams_0_0', message: Python model 'streams_0_0' is "
        "using the decoupled mode and the execute function must return None."
    )
    assert answer.code == "INTERNAL"


@pytest.mark.spec("pb-D06")
def test_a_list_behind_the_final_flag_is_not_seen_by_the_client(lab):
    assert contents(lab.responses("sender.send(out(4), FINAL)\nreturn [out(5)]")) == [[4]]


def test_a_list_behind_a_response_is_an_error_behind_it(lab):
    first, last = lab.responses("sender.send(out(4))\nreturn [out(5)]")
    assert (first.out, first.final) == ([4], False)
    assert "must return None" in last.error
    assert last.final


def test_exception_behind_some_responses(lab):
    code = 'state["raised"] = sender\nsender.send(out(1))\nsender.send(out(2))\nraise ValueError("third")'
    first, second, last = lab.responses(code)
    assert [first.out, second.out] == [[1], [2]]
    assert last.final
    assert last.code == "INTERNAL"
    assert last.error.startswith(
        "Failed to process the request(s) for model 'streams_0_0', message: ValueError: third\n\nAt:"
    )
    # The sender is closed.
    told = """
        try:
            state.pop("raised").send(out(3), FINAL)
        except pb_utils.TritonModelException as error:
            sender.send(text(error), FINAL)
    """
    assert contents(lab.responses(told)) == [[CLOSED]]


def test_exception_behind_the_final_flag_is_not_seen_by_the_client(lab):
    assert contents(lab.responses("sender.send(out(4), FINAL)\nraise ValueError")) == [[4]]


def test_errors_within_a_stream_do_not_end_it(lab):
    first, second, third, last = lab.responses("""
        sender.send(out(1))
        sender.send(failed("not this one", pb_utils.TritonError.NOT_FOUND))
        sender.send(out(3))
        sender.send(flags=FINAL)
    """)
    assert (second.error, second.code, second.final) == ("not this one", "NOT_FOUND", False)
    assert [first.out, third.out] == [[1], [3]]
    assert last == END


def test_a_response_that_cannot_be_sent_is_an_error_in_its_place(lab):
    first, second, last = lab.responses("""
        large = {str(i): "x" * 100_000 for i in range(20)}
        sender.send(out(1, **large))
        sender.send(out(2))
        sender.send(flags=FINAL)
    """)
    assert "response parameters of" in first.error
    assert second.out == [2]
    assert last == END


@pytest.mark.spec("pb-H04")
def test_streams_of_a_dead_process_are_answered(lab):
    async def watch():
        code = 'state.setdefault("kept", []).append(sender)\nsender.send(text(os.getpid()))'
        streams = [lab.stream(code, model="checked") for _ in range(3)]
        pids = {int((await stream.next()).text[0]) for stream in streams}
        assert contents(await lab.stream("sender.send(out(1), FINAL)", model="checked").rest()) == [[1]]  # all returned
        (pid,) = pids
        os.kill(pid, signal.SIGKILL)
        ends = [await stream.next() for stream in streams]
        assert contents(await lab.stream("sender.send(out(2), FINAL)", model="checked").rest()) == [[2]]
        return ends

    for end in lab.run(watch()):
        assert end.final
        assert end.code == "INTERNAL"
        assert end.error.startswith("Stub process 'checked_0_0' is not healthy.")


# Senders that are lost


@pytest.mark.spec("pb-D07")
@pytest.mark.parametrize(
    "code",
    [
        "return",
        "sender = request.get_response_sender()\ndel sender",
        "request.get_response_sender().send(out(1))",
        "state['cycle'] = cycle = [request, request.get_response_sender()]\ncycle.append(cycle)\n"
        "del state['cycle'], cycle, request\ngc.collect()",
        "def work(sender):\n    sender.send(out(1))\n    raise SystemExit\nin_thread(work, request.get_response_sender())",
    ],
    ids=["never asked for", "deleted", "after a response", "in a cycle", "in a thread that ends"],
)
def test_a_dropped_sender_ends_the_stream_with_an_error(lab, code):
    answers = lab.responses(code)
    assert contents(answers[:-1]) == [[1]] * (len(answers) - 1)
    assert answers[-1].final
    assert answers[-1].code == "INTERNAL"
    assert answers[-1].error.startswith(DROPPED)


@pytest.mark.spec("pb-D07")
@pytest.mark.parametrize(
    "code",
    [
        "try:\n    raise ValueError('no')\nexcept ValueError as error:\n    kept = error",
        "sender.send(out(1))\ncycle = [sender]\ncycle.append(cycle)",
    ],
    ids=["of an exception that is kept", "after a response"],
)
def test_a_sender_in_a_cycle_of_an_idle_process(lab, code):
    """Its collector runs only when new objects are made, so the host has it run."""

    async def watch():
        stream = lab.stream("gc.collect()\n" + code)
        async with asyncio.timeout(60):
            while not stream.pending.answered:
                lab.engine.repository.life_cycle.trim()  # the server does it once a second
                await asyncio.sleep(0.01)
        return await stream.rest()

    assert lab.run(watch())[-1].error.startswith(DROPPED)


@pytest.mark.spec("pb-D07")
def test_a_sender_that_is_kept_and_dropped_later(lab):
    async def watch():
        kept = lab.stream('state["kept"] = sender\nsender.send(out(1))')
        assert (await kept.next()).out == [1]
        assert await lab.stream("sender.send(flags=FINAL)").rest() == [END]
        assert not kept.has_more()
        assert await lab.stream('del state["kept"]\nsender.send(flags=FINAL)').rest() == [END]
        return await kept.rest()

    (end,) = lab.run(watch())
    assert end.error.startswith(DROPPED)


@pytest.mark.spec("pb-D07")
def test_collector_may_drop_senders_anywhere(lab):
    """Whatever the process is doing when the collector finds one, wherever it is locked."""
    drop = """
        gc.set_threshold(1, 1, 1)
        cycle = [sender]
        cycle.append(cycle)
        del request
    """
    busy = """
        gc.set_threshold(1, 1, 1)
        for i in range(3):
            sender.send(out(i))
            request.is_cancelled()
        sender.send(flags=FINAL)
    """

    async def watch():
        for _ in range(10):
            streams = [lab.stream(drop if i % 2 else busy) for i in range(40)]
            answers = [await stream.rest() for stream in streams[::2]]
            assert all(len(answer) == 4 for answer in answers)
            async with asyncio.timeout(60):
                while not all(stream.pending.answered for stream in streams):
                    # One that is under way elsewhere makes a collection do nothing.
                    await lab.stream("gc.collect()\nsender.send(flags=FINAL)").rest()
            for stream in streams[1::2]:
                (end,) = await stream.rest()
                assert end.error.startswith(DROPPED)
        assert await lab.stream("gc.set_threshold(700, 10, 10)\nsender.send(flags=FINAL)").rest() == [END]

    lab.run(watch())


# Coroutines


@pytest.mark.spec("pb-D03")
def test_coroutines_of_many_requests_overlap(lab):
    """Each waits for the next one: they all end only if all have begun."""
    code = """
        number = int(array(request, "IN")[0])
        events = state.setdefault("events", {})
        mine = events.setdefault(number, asyncio.Event())
        next_one = events.setdefault(number + 1, asyncio.Event())
        sender.send(out(number))
        if number < 50:
            await next_one.wait()
        mine.set()
        sender.send(out(-number), FINAL)
    """

    async def watch():
        streams = [lab.stream(code, asynchronous=True, inputs={"IN": np.array([i], np.int32)}) for i in range(51)]
        return [contents(await stream.rest()) for stream in streams]

    assert lab.run(watch()) == [[[i], [-i]] for i in range(51)]


@pytest.mark.spec("pb-D04")
def test_exception_in_a_coroutine(lab):
    first, last = lab.responses(
        "sender.send(out(1))\nawait asyncio.sleep(0.01)\nraise ValueError('in a coroutine')", asynchronous=True
    )
    assert first.out == [1]
    assert last.final
    assert last.error.startswith(
        "Failed to process the request(s) for model 'streams_0_0', message: ValueError: in a coroutine\n\nAt:\n"
    )
    assert "run\n" in last.error
    assert "pybackend_stub" not in last.error


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("return [out(1)]", "is using the decoupled mode and the execute function must return None."),
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("asyncio.current_task().cancel()\nawait asyncio.sleep(1)", "CancelledError"),
        ("return", DROPPED),
        ("await asyncio.sleep(0)\nreturn", DROPPED),
    ],
)
def test_other_ends_of_coroutines(lab, code, text):
    (last,) = lab.responses(code, asynchronous=True)
    assert text in last.error
    assert last.final
    assert contents(lab.responses("sender.send(out(1), FINAL)", asynchronous=True)) == [[1]]  # the loop lives on


def test_a_coroutine_that_never_awaits(lab):
    answers = lab.responses("for i in range(3): sender.send(out(i))\nsender.send(flags=FINAL)", asynchronous=True)
    assert contents(answers) == [[0], [1], [2]]


def test_a_coroutine_leaves_its_sender_to_a_task(lab):
    code = """
        async def later():
            await asyncio.sleep(0.02)
            sender.send(out(9), FINAL)
        state["task"] = asyncio.ensure_future(later())
        sender.send(out(8))
    """
    assert contents(lab.responses(code, asynchronous=True)) == [[8], [9]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failed_execution_lets_go_of_its_inputs(lab, asynchronous):
    """Without the collector's help: what an exception refers to is memory that the model's next requests need."""
    code = """
        gc.disable()
        state["input"] = weakref.ref(array(request, "IN"))
        raise ValueError
    """
    lab.responses(code, asynchronous=asynchronous, inputs={"IN": np.ones(100_000, np.int32)})

    async def gone():
        answers = await lab.stream('sender.send(text(state["input"]() is None), FINAL)').rest()
        return contents(answers) == [["True"]]

    async def watch():
        try:
            async with asyncio.timeout(60):
                while not await gone():  # the coroutines' thread answers first, and forgets then
                    pass
        finally:
            await lab.stream("gc.enable()\nsender.send(flags=FINAL)").rest()

    lab.run(watch())
