"""The handle by which a request is cancelled, paused and resumed: what reaches its holder, and when nothing does."""

from __future__ import annotations

import pytest

from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest


class Holder:
    """Notes what it is told."""

    def __init__(self):
        self.told = []

    def cancel(self, pending):
        self.told.append("cancel")

    def flow(self, pending, *, paused):
        self.told.append("pause" if paused else "resume")

    def is_running(self, pending):
        return False

    def blockers(self, pending):
        return ()


@pytest.fixture
def queue():
    return Holder()


@pytest.fixture
def pending(queue):
    return PendingRequest(InferenceRequest("m"), lambda response: None, queue)


def test_cancelled_once(pending, queue):
    pending.cancel()
    pending.cancel()
    assert queue.told == ["cancel"]


def test_a_pause_is_said_once_and_ended_once(pending, queue):
    pending.resume()
    pending.pause()
    pending.pause()
    pending.resume()
    pending.resume()
    assert queue.told == ["pause", "resume"]


@pytest.mark.parametrize("over", ["answered", "cancelled"])
def test_a_request_that_is_over_is_not_paused(over, pending, queue):
    setattr(pending, over, True)
    pending.pause()
    assert not pending.paused
    pending.cancel()
    assert queue.told == []


def test_whoever_holds_it_is_told(pending, queue):
    instance = Holder()
    assert pending.is_waiting
    pending.holder, pending.execution = instance, 3
    assert not pending.is_waiting
    pending.pause()
    pending.wait()
    assert pending.is_waiting
    assert pending.execution == 0
    pending.cancel()
    assert (instance.told, queue.told) == (["pause"], ["cancel"])
