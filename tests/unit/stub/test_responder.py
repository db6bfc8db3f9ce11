"""Response senders at the edges that no model can bring about at will: what the garbage collector finds them in."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_stub.channel import HostChannel
from pybackend_stub.client_memory import PassedRegions
from pybackend_stub.memory import StubMemory
from pybackend_stub.receiver import Receiver
from pybackend_stub.responder import Responder
from pybackend_stub.results import ResultWriter, UnknownOutputs
from pybackend_stub.tensor_io import OutputWriter
from pybackend_wire.framing import JSON, FrameDecoder, encode_frame
from pybackend_wire.host_messages import Flow, encoded
from pybackend_wire.messages import STREAM_WINDOW, StubMessage

KEY = (7, 0)


@pytest.fixture
def stub():
    """The parts of a stub that senders need, and the host's end of its socket."""
    host, end = socket.socketpair()
    host.settimeout(60)
    channel = HostChannel(end.detach())

    def handle(message, _tail):
        responder.on_flow((message.execution, message.request), message.allowed)

    memory = StubMemory(lambda: None)
    receiver = Receiver(channel, handle, lambda _executions: None)
    writer = OutputWriter(channel, receiver, memory, PassedRegions(), "instance")
    responder = Responder(
        channel, receiver, ResultWriter(writer, "instance", str, UnknownOutputs((), None)), decoupled=True
    )
    request = InferenceRequest._from_wire("", 0, [], (), 0, 0, None, KEY)
    decoder = FrameDecoder()

    def said():
        """The messages of the next frame."""
        frames = []
        while not frames:
            frames = decoder.received(host.recv_into(decoder.get_buffer()))
        return json.loads(frames[0].metadata)

    def flow(allowed):
        host.sendall(encode_frame(JSON, [encoded(Flow(*KEY, allowed))]))

    with host:
        yield SimpleNamespace(
            receiver=receiver, responder=responder, sender=lambda: responder.sender(request), said=said, flow=flow
        )
    channel.close()


def ends_in_time(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_dropped_while_the_process_decides_who_reads(stub):
    """The collector may run in the thread that does so, and holds the lock for it."""
    kept = [stub.sender()]
    with stub.receiver._guard:
        assert ends_in_time(kept.clear)
    ((kind, execution, index, final, (error, _, _)),) = stub.said()
    assert (kind, execution, index, final) == (StubMessage.RESPOND, *KEY, True)
    assert "dropped this request's response sender" in error[1]


def test_dropped_while_the_client_takes_nothing(stub):
    kept = [stub.sender()]
    stub.flow(0)
    stub.receiver.poll()
    assert ends_in_time(kept.clear)
    assert stub.said()[0][3] is True


def test_only_responses_that_others_follow_wait_for_the_client(stub):
    sender = stub.sender()
    stub.flow(0)
    sending = threading.Thread(target=sender.send, args=[InferenceResponse()], daemon=True)
    sending.start()
    sending.join(0.2)
    assert sending.is_alive()
    stub.flow(1)
    assert stub.said()[0][3] is False
    sending.join(60)
    stub.flow(0)
    assert ends_in_time(lambda: sender.send(flags=1))
    assert stub.said()[0][3] is True


def test_a_stream_runs_ahead_of_the_host_by_a_window(stub):
    """The host grants more, or forgets what it has granted when the request is answered."""
    sender = stub.sender()
    for _ in range(STREAM_WINDOW):
        sender.send(InferenceResponse())
        assert stub.said()[0][3] is False
    for allowed in (STREAM_WINDOW + 1, STREAM_WINDOW + 2):
        sending = threading.Thread(target=sender.send, args=[InferenceResponse()], daemon=True)
        sending.start()
        sending.join(0.1)
        assert sending.is_alive()
        stub.flow(allowed)
        assert stub.said()[0][3] is False
        sending.join(60)
    sender.send(flags=1)
    assert stub.said()[0][3] is True
    stub.flow(None)
    stub.receiver.poll()
    assert not any((stub.responder._sent, stub.responder._allowed, stub.responder._waiting))
