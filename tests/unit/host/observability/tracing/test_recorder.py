"""The queue of traces: what waits is bounded, losses are counted, and the end comes in time."""

import logging
import threading

import pytest

from pybackend.observability.tracing.recorder import Recorder, TraceLossError
from tests.support.gates import wait_until


class Sink:
    """Keeps what it gets; while its gate is shut, it waits."""

    def __init__(self):
        self.written = []
        self.fails = False
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def write(self, traces):
        self.reached.set()
        self.gate.wait(60)
        if self.fails:
            raise TraceLossError("it is full")
        self.written += traces

    def interrupt(self):
        self.gate.set()

    def close(self):
        self.closed = True


@pytest.fixture
def sink():
    return Sink()


def test_traces_arrive_in_order_and_the_end_writes_the_rest(sink):
    recorder = Recorder(sink, most_waiting=100, period_s=60, batch_size=40)
    for number in range(100):
        recorder.add(number)
    recorder.close()
    assert sink.written == list(range(100))
    assert sink.closed


def test_more_than_may_wait_are_lost_and_counted(sink, caplog):
    sink.gate.clear()
    recorder = Recorder(sink, most_waiting=5, period_s=0, batch_size=1)
    with caplog.at_level(logging.WARNING, "pybackend"):
        recorder.add("first")
        assert sink.reached.wait(60)
        for number in range(20):
            recorder.add(number)
        sink.gate.set()
        wait_until(lambda: len(sink.written) == 6, "the traces")
        recorder.close()
    assert sink.written == ["first", 0, 1, 2, 3, 4]
    assert [record.getMessage() for record in caplog.records] == [
        "traces are lost: more than 5 traces wait",
        "traces are recorded again; lost 15 of them",
    ]


def test_one_warning_while_they_cannot_be_written(sink, caplog):
    sink.fails = True
    recorder = Recorder(sink, most_waiting=100, period_s=0, batch_size=1)
    with caplog.at_level(logging.WARNING, "pybackend"):
        for number in range(10):
            sink.reached.clear()
            recorder.add(number)
            assert sink.reached.wait(60)
        sink.fails = False
        recorder.add("last")
        recorder.close()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "traces are lost: it is full"
    assert len(messages) == 2


def test_a_sink_that_waits_is_interrupted_at_the_end(sink, monkeypatch):
    monkeypatch.setattr("pybackend.observability.tracing.recorder.CLOSE_S", 0.2)
    sink.gate.clear()
    recorder = Recorder(sink, most_waiting=100, period_s=0, batch_size=1)
    recorder.add("first")
    assert sink.reached.wait(60)
    sink.interrupt = lambda: None  # of no use: the end comes all the same
    recorder.close()
    assert not sink.closed
    sink.gate.set()
    wait_until(lambda: sink.closed, "its end")
