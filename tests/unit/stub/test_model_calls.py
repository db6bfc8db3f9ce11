"""The replies to one call, where the thread that reads and the thread that waits meet."""

import sys
import threading
from collections import deque

from pybackend_stub.model_calls import _Replies
from pybackend_wire.host_messages import Reply

DEADLINE_S = 60
FIRST, LAST = (Reply(1, final, ((2, text), (), None)) for final, text in ((False, "first"), (True, "last")))


class LooksEmpty(deque):
    """What comes right after it was looked at, as when another thread gets its turn there."""

    then = None

    def __len__(self):
        length = super().__len__()
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return length


def test_the_last_reply_comes_between_two_looks():
    replies = _Replies(None, None)
    replies._responses = LooksEmpty()
    replies._responses.then = lambda: replies.on_reply(LAST, bytearray())
    response = replies.receive()
    assert response is not None
    assert response.error().message() == "last"
    assert replies.receive() is None


class Meeting:
    """Waits and wakes as a receiver does, but reads nothing; it says when somebody waits."""

    def __init__(self):
        self.somebody_waits = threading.Event()

    def wait(self, waiter):
        while not waiter.done:
            self.somebody_waits.set()
            waiter.sleep()

    @staticmethod
    def finish(waiter):
        waiter.done = True
        waiter.wake()


class Interruption:
    """Stops a function before one of its operations, as an interpreter does that gives another thread its turn there."""

    def __init__(self, function, before):
        self._code = function.__code__
        self._left = before
        self.here, self.go_on = threading.Event(), threading.Event()

    def trace(self, frame, event, _argument):
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                self.here.set()
                self.go_on.wait(DEADLINE_S)
        return self.trace


def test_no_reply_is_lost_wherever_the_threads_switch():
    """Python before 3.10 may switch between any two operations."""
    for before in range(1, 1000):
        meeting, found = Meeting(), []
        replies = _Replies(meeting, None)
        interruption = Interruption(_Replies.on_reply, before)

        def read(replies=replies, interruption=interruption):
            sys.settrace(interruption.trace)
            replies.on_reply(FIRST, bytearray())
            sys.settrace(None)
            interruption.here.set()
            interruption.go_on.wait(DEADLINE_S)
            replies.on_reply(LAST, bytearray())

        def take(replies=replies, found=found):
            found.extend(iter(replies.receive, None))

        reader, taker = threading.Thread(target=read), threading.Thread(target=take, daemon=True)
        reader.start()
        assert interruption.here.wait(DEADLINE_S)
        was_interrupted = interruption._left == 0
        taker.start()
        assert meeting.somebody_waits.wait(DEADLINE_S)
        interruption.go_on.set()
        reader.join(DEADLINE_S)
        taker.join(DEADLINE_S)
        assert [response.error().message() for response in found] == ["first", "last"], f"lost at operation {before}"
        if not was_interrupted:
            break
    assert before > 20, "nothing was interrupted"
