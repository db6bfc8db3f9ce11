"""The host's types of what a stub may say have the layout of the wire's; and what is legal when."""

from __future__ import annotations

import json
import types
import typing
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.ipc import stub_messages
from pybackend_wire import messages
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.framing import Frame
from pybackend_wire.messages import LEGAL, TAIL, HostMessage, SegmentRole, StubMessage, StubState

PAIRS = {
    stub_messages.Hello: messages.Hello,
    stub_messages.Completed: messages.Completed,
    stub_messages.Result: messages.Result,
    stub_messages.RequestResult: messages.RequestResult,
    stub_messages.Failure: messages.Failure,
    stub_messages.Place: messages.TensorPlace,
}
SAMPLES = {
    StubMessage.HELLO: messages.Hello(33, 1, 7, "3.11.4", "1.26.0", ["msgpack", "json"]),
    StubMessage.COMPLETED: messages.Completed(34, {"name": "m", "input": [{"dims": [-1]}]}),
    StubMessage.INITIALIZED: (35,),
    StubMessage.FAILED: (36, "load", messages.Failure(1, "text")),
    StubMessage.RESULT: messages.Result(
        37,
        1,
        2,
        3,
        4,
        [
            messages.RequestResult(
                None, [messages.TensorPlace("OUT", "FP32", (2, 2), TAIL, 0, 16)], {"a": 1, "b": "x"}
            ),
            messages.RequestResult(messages.Failure(4, "text"), (), None),
        ],
    ),
    StubMessage.FREE_INPUT: (38, [messages.BlockPlace(3, 64)]),
    StubMessage.NEED_OUTPUT: (39, 4096),
    StubMessage.LOG: (40, 2, "model.py", 7, "text"),
    StubMessage.FINALIZED: (41,),
    StubMessage.DETACHED: (42, 3),
}
ENCODERS = {"msgpack": msgspec.msgpack.encode, "json": lambda value: json.dumps(value).encode()}


@pytest.mark.parametrize("struct", PAIRS, ids=lambda struct: struct.__name__)
def test_fields_stand_in_the_same_order(struct):
    fields = list(PAIRS[struct]._fields)
    if struct.__struct_config__.tag is not None:
        assert fields.pop(0) == "kind"
    assert list(struct.__struct_fields__) == fields


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("kind", StubMessage, ids=lambda kind: kind.name)
def test_every_message_is_understood(codec, kind):
    (decoded,) = stub_messages.decode(codec, Frame(ENCODERS[codec]([SAMPLES[kind]]), bytearray()))
    assert stub_messages.KIND[type(decoded)] == kind
    assert json.loads(json.dumps(msgspec.to_builtins(decoded))) == json.loads(json.dumps(SAMPLES[kind]))


def test_every_kind_has_a_type():
    assert sorted(stub_messages.KIND.values()) == sorted(StubMessage)
    assert set(stub_messages.KIND) == set(typing.get_args(stub_messages.Message))
    assert isinstance(stub_messages.Message, types.UnionType)


def test_kinds_of_both_directions_differ():
    assert not {int(kind) for kind in HostMessage} & {int(kind) for kind in StubMessage}
    assert TAIL not in {int(role) for role in SegmentRole}


@pytest.mark.parametrize("codec", ENCODERS)
@given(data=st.data())
def test_mutilated_messages_are_a_broken_contract(codec, data):
    """A part missing, added, or of another type: refused, or (where it means the same) understood."""
    message = json.loads(json.dumps(SAMPLES[data.draw(st.sampled_from(list(SAMPLES)))]))
    index = data.draw(st.integers(0, len(message) - 1))
    odd = data.draw(st.sampled_from([None, -1, 2**63, 1.5, "text", [], {}, [[]], [[None]], True, float("nan")]))
    action = data.draw(st.sampled_from(["replace", "remove", "insert"]))
    if action == "replace":
        message[index] = odd
    elif action == "remove":
        del message[index]
    else:
        message.insert(index, odd)
    with suppress(RemoteProtocolError):
        stub_messages.decode(codec, Frame(ENCODERS[codec]([message]), bytearray()))


@pytest.mark.parametrize("codec", ENCODERS)
@given(metadata=st.binary(max_size=80))
def test_garbage_is_a_broken_contract(codec, metadata):
    with suppress(RemoteProtocolError):
        stub_messages.decode(codec, Frame(metadata, bytearray()))


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize(
    "message",
    [
        (StubMessage.RESULT, -1, 2, 3, 4, []),
        (StubMessage.RESULT, 2**63, 2, 3, 4, []),
        (StubMessage.RESULT, 1, 2, 3, 4, [[[8, "no such code"], [], None]]),
        (StubMessage.RESULT, 1, 2, 3, 4, [[None, [["OUT", "FP32", [-1], 0, 0, 0]], None]]),
        (StubMessage.RESULT, 1, 2, 3, 4, [[None, [["OUT", "FP32", [1], 0, -4, 4]], None]]),
        (StubMessage.RESULT, 1, 2, 3, 4, [[None, [], {"nested": {}}]]),
        (StubMessage.NEED_OUTPUT, -5),
        (StubMessage.FREE_INPUT, [[1]]),
        (StubMessage.FREE_INPUT, [[1, 2, 3]]),
        (StubMessage.HELLO, 1, 7, "3.11", "1.26", "json"),
        (HostMessage.EXECUTE, []),
        (99,),
        (),
    ],
)
def test_lies(codec, message):
    with pytest.raises(RemoteProtocolError):
        stub_messages.decode(codec, Frame(ENCODERS[codec]([message]), bytearray()))


@pytest.mark.parametrize("codec", ENCODERS)
def test_endless_nesting(codec):
    deep = b"[" * 100_000 if codec == "json" else b"\x91" * 100_000
    with pytest.raises(RemoteProtocolError):
        stub_messages.decode(codec, Frame(deep, bytearray()))


def test_error_codes_are_those_a_failure_may_have():
    for code in range(-1, 10):
        message = [[StubMessage.FAILED, "load", [code, "text"]]]
        frame = Frame(msgspec.msgpack.encode(message), bytearray())
        if code in set(ErrorCode):
            stub_messages.decode("msgpack", frame)
        else:
            with pytest.raises(RemoteProtocolError):
                stub_messages.decode("msgpack", frame)


def test_what_is_legal_when():
    assert set(LEGAL) == set(StubState)
    assert LEGAL[StubState.GONE] == frozenset()
    once = {
        StubMessage.HELLO: {StubState.STARTING},
        StubMessage.COMPLETED: {StubState.LOADING},
        StubMessage.INITIALIZED: {StubState.INITIALIZING},
        StubMessage.FAILED: {StubState.STARTING, StubState.LOADING, StubState.INITIALIZING},
        StubMessage.RESULT: {StubState.READY, StubState.FINALIZING},
        StubMessage.FINALIZED: {StubState.FINALIZING},
    }
    for kind, states in once.items():
        assert {state for state, legal in LEGAL.items() if kind in legal} == states
    for kind in set(StubMessage) - set(once):
        assert {state for state, legal in LEGAL.items() if kind not in legal} == {StubState.STARTING, StubState.GONE}
