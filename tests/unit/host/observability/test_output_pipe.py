"""A model's output pipe on an event loop: what is written, what is dropped, and how it ends."""

import asyncio
import logging
import os
import threading
import time
from itertools import pairwise

import pytest

from pybackend.observability import output_pipe
from pybackend.observability.model_output import BURST_UNITS, LAST_LINES, UNITS_PER_S, ModelOutput
from pybackend.observability.output_pipe import OutputPipe
from pybackend_wire.log_record import encode_record


class Speaker:
    """The process's end of the pipe, and what the log got."""

    def __init__(self, caplog):
        ours, self.theirs = os.pipe()
        self.caplog = caplog
        self.output = ModelOutput("m_0")
        self.pipe = OutputPipe(ours, 4711)
        self.pipe.output = self.output
        self.written = asyncio.Event()
        self._texts = []
        caplog.handler.addFilter(self.on_record)

    def on_record(self, _record):
        self.written.set()
        return True

    def say(self, *chunks):
        for chunk in chunks:
            os.write(self.theirs, chunk)

    @property
    def heard(self):
        """Texts of all lines, or where they stand of what the host says itself."""
        self._texts += [record.getMessage() for record in self.caplog.records[len(self._texts) :]]
        return self._texts

    @property
    def places(self):
        return [f"{record.filename}:{record.lineno}" for record in self.caplog.records]

    async def until(self, condition):
        """Wait for what a line that is written makes true."""
        async with asyncio.timeout(60):
            while not condition():
                self.written.clear()
                await self.written.wait()


@pytest.fixture
def speaker(caplog):
    caplog.set_level(logging.INFO, "pybackend")
    speaker = Speaker(caplog)
    yield speaker
    speaker.pipe.finish()
    caplog.handler.removeFilter(speaker.on_record)
    os.close(speaker.theirs)


def on_a_loop(scenario):
    asyncio.run(scenario)


def test_lines_come_as_they_are_said(speaker):
    async def scenario():
        speaker.say(b"before the start\n")
        speaker.pipe.start(asyncio.get_running_loop())
        await speaker.until(lambda: speaker.heard)
        for number in range(10):
            speaker.say(b"line %d\n" % number)
            await speaker.until(lambda number=number: len(speaker.heard) == number + 2)
        assert speaker.heard == ["before the start", *(f"line {number}" for number in range(10))]
        assert speaker.places == [f"m_0/output:{number}" for number in range(1, 12)]
        assert {record.process for record in speaker.caplog.records} == {4711}

    on_a_loop(scenario())


def test_a_line_without_end_comes_after_a_while(speaker, monkeypatch):
    monkeypatch.setattr(output_pipe, "_PARTIAL_S", 0.05)

    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        speaker.say(b"whole\nhalf")
        await speaker.until(lambda: len(speaker.heard) == 2)
        speaker.say(b" the rest\n")
        await speaker.until(lambda: len(speaker.heard) == 3)
        assert speaker.heard == ["whole", "half", " the rest"]

    on_a_loop(scenario())


def test_what_is_there_is_read_before_the_host_goes_on(speaker):
    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        speaker.say(b"said first\n")
        speaker.pipe.read_now()
        assert speaker.heard == ["said first"]
        speaker.pipe.read_now()
        speaker.pipe.finish()
        speaker.pipe.read_now()
        assert speaker.heard == ["said first"]

    on_a_loop(scenario())


def test_the_end_is_written_although_the_pipe_is_still_open(speaker):
    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        speaker.say(b"one\ntwo\nhalf")
        speaker.pipe.finish()
        assert speaker.heard == ["one", "two", "half"]
        assert speaker.output.tail == ["one", "two", "half"]
        speaker.pipe.finish()
        with pytest.raises(BrokenPipeError):
            speaker.say(b"nobody hears this")

    on_a_loop(scenario())


def test_a_process_that_never_was_an_instance(speaker):
    """It printed something and died before it had a name: no loop has ever read it."""
    speaker.say(b"why it died\n")
    speaker.pipe.output = ModelOutput("stub")
    speaker.pipe.finish()
    assert list(zip(speaker.places, speaker.heard, strict=True)) == [("stub/output:1", "why it died")]


def test_an_end_of_the_pipe_before_that_of_the_process(speaker):
    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        speaker.say(b"last\n")
        os.close(speaker.theirs)
        await speaker.until(lambda: speaker.heard)
        await asyncio.sleep(0.02)
        speaker.pipe.finish()
        assert speaker.heard == ["last"]

    on_a_loop(scenario())
    speaker.theirs = os.open(os.devnull, os.O_RDONLY)


def flood(speaker, lines, line=b"x" * 99 + b"\n", first=0):
    """A thread that says so many lines as fast as it can; each begins with its number."""

    def say():
        for number in range(first, first + lines, 100):
            speaker.say(b"".join(b"%06d" % each + line for each in range(number, min(number + 100, first + lines))))

    thread = threading.Thread(target=say)
    thread.start()
    return thread


def test_more_than_the_log_takes_is_dropped_and_counted(speaker, monkeypatch):
    monkeypatch.setattr(output_pipe, "_DROPPING_S", 0.2)

    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        began_s = time.monotonic()
        thread = flood(speaker, 100_000)
        await asyncio.to_thread(thread.join)
        speaker.say(b"cut off")
        await speaker.until(lambda: any("dropped" in text for text in speaker.heard[-3:]))
        await asyncio.sleep(0.3)
        speaker.say(b" here\nheard again\n")
        await speaker.until(lambda: speaker.heard[-1] == "heard again")
        numbers = [int(text[:6]) for text in speaker.heard if text.endswith("x")]
        assert numbers[:1000] == list(range(1000))
        assert numbers == sorted(numbers)
        assert len(numbers) <= (BURST_UNITS + UNITS_PER_S * (time.monotonic() - began_s)) / 2
        said = sum(int(text.split("dropped ")[1].split()[0]) for text in speaker.heard if "dropped" in text)
        rest = sum(text.endswith(" here") for text in speaker.heard)
        assert said == speaker.output.dropped_lines == 100_000 - len(numbers) + 1 - rest
        # The number of a printed line counts those that were dropped.
        assert int(speaker.places[-1].split(":")[1]) == 100_002

    on_a_loop(scenario())


def test_the_last_words_are_never_dropped(speaker):
    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        thread = flood(speaker, 100_000)
        await asyncio.to_thread(thread.join)
        speaker.say(*encode_record(1, 1, 2, "model.py", 5, "Traceback"), b"ValueError: why\nhalf")
        speaker.pipe.finish()
        assert speaker.heard[-2:] == ["ValueError: why", "half"]
        assert speaker.caplog.records[-3].levelno == logging.ERROR
        assert [int(text[:6]) for text in speaker.heard[-LAST_LINES:-3]] == list(range(100_003 - LAST_LINES, 100_000))
        assert speaker.output.tail == speaker.heard[-LAST_LINES:]
        kept = sum(text.endswith("x") for text in speaker.heard)
        assert speaker.output.dropped_lines == 100_000 - kept

    on_a_loop(scenario())


def test_an_end_with_much_left_does_not_hold_up_the_host(speaker):
    """What was said in the last moment fits into the budget, but not into the time that the end of a process may take."""

    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        os.set_blocking(speaker.theirs, False)
        for number in range(8):
            speaker.say(b"".join(b"%04d\n" % each for each in range(number * 1000, (number + 1) * 1000)))
            speaker.pipe.read_now()
        speaker.pipe.finish()
        numbers = [int(text) for text in speaker.heard if text.isdecimal()]
        assert numbers[-LAST_LINES:] == list(range(8000 - LAST_LINES, 8000))
        assert len(numbers) + speaker.output.dropped_lines == 8000

    on_a_loop(scenario())


def test_records_that_nobody_wants_cost_no_room(speaker):
    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        rounds = BURST_UNITS // 3000 + 1
        for number in range(rounds):
            said = b"".join(encode_record(1, 1, 3, "model.py", 5, "verbose")) * 3000 + b"heard\n"
            await asyncio.to_thread(os.write, speaker.theirs, said)
            await speaker.until(lambda number=number: len(speaker.heard) > number)
        assert speaker.heard == ["heard"] * rounds
        assert speaker.output.dropped_lines == 0

    on_a_loop(scenario())


def test_requests_have_the_loop_while_much_is_written(speaker):
    async def scenario():
        speaker.pipe.start(asyncio.get_running_loop())
        thread = flood(speaker, 8_000, b" short\n")
        counts = [0]
        while counts[-1] < 8_000:
            await asyncio.sleep(0)
            counts.append(len(speaker.caplog.records))
        thread.join()
        assert [int(text[:6]) for text in speaker.heard] == list(range(8_000))
        assert max(after - before for before, after in pairwise(counts)) < 2000  # some dozens are usual

    on_a_loop(scenario())


def test_the_tail_is_the_running_processs(speaker):
    async def scenario():
        output = speaker.output
        speaker.pipe.start(asyncio.get_running_loop())
        speaker.say(b"".join(b"line %d\n" % number for number in range(50)), b"y" * 2000 + b"\n")
        await speaker.until(lambda: len(speaker.heard) == 51)
        assert output.tail == [*(f"line {number}" for number in range(31, 50)), "y" * 500]
        output.begin()
        assert output.tail == []

    on_a_loop(scenario())
