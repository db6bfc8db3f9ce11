"""Failures with the same text: the first is written, the others are counted, and none is lost."""

import asyncio
import re

from pybackend.observability.repeated_failures import MOST_KINDS, RepeatedFailures
from pybackend.observability.stub_output_lines import FailureNote, ModelLine
from tests.support.model_control import until


def note(failure, number=0):
    return FailureNote(4711, "model.py", 7, failure, f"request id '{number}'", "ValueError: no")


def text(failure):
    return ModelLine("the whole text", 4711, 2, "model.py", 7, failure)


def counts(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_first_is_written_and_the_others_are_counted_even_if_nothing_follows(caplog):
    async def scenario():
        failures = RepeatedFailures()
        for number in range(10):
            failures.count(note(1, number), "m_0_0", {})
            assert failures.admits(text(1)) is (number == 0)
        failures.count(note(1, 10), "m_0_1", {})  # another instance, which sends no text
        await until(lambda: caplog.records)

    asyncio.run(scenario())
    assert counts(caplog) == ["... and 10 more like it in the last second; last request id '10': ValueError: no"]
    (record,) = caplog.records
    assert (record.levelname, record.filename, record.lineno) == ("ERROR", "m_0_1/model.py", 7)


def test_one_alone_is_not_counted(caplog):
    async def scenario():
        failures = RepeatedFailures()
        failures.count(note(1), "m_0", {})
        assert failures.admits(text(1))
        failures.count(note(2), "m_0", {})  # its text was sent a moment before, when the last second was not over
        await until(lambda: caplog.records)
        failures.close()

    asyncio.run(scenario())
    assert counts(caplog) == ["... and 1 more like it in the last second; last request id '0': ValueError: no"]


def test_the_end_of_the_model_and_too_many_kinds_lose_nothing(caplog):
    async def scenario():
        failures = RepeatedFailures()
        for kind in range(1, 2 * MOST_KINDS + 1):
            for _ in range(3):
                failures.count(note(kind), "m_0", {})
                failures.admits(text(kind))
        assert len(caplog.records) == MOST_KINDS
        failures.close()

    asyncio.run(scenario())
    assert len(caplog.records) == 2 * MOST_KINDS
    assert all(re.match(r"\.\.\. and 2 more like it", said) for said in counts(caplog))


def test_a_text_without_a_note_is_written():
    assert RepeatedFailures().admits(text(1))
