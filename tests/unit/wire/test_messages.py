"""Messages: what one side makes the other reads, what a stub must not say is refused, and which is legal when."""

import json
import types
import typing
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.ipc import stub_messages
from pybackend_wire import host_messages, messages
from pybackend_wire import stub_messages as said
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.framing import Frame
from pybackend_wire.messages import LEGAL, TAIL, HostMessage, SegmentRole, StubMessage, StubState
from pybackend_wire.stub_messages import encoded

PLACE = messages.TensorPlace("OUT", "FP32", (2, 2), TAIL, 0, 16)
ANSWER = messages.RequestResult(None, [PLACE], {"a": 1, "b": "x", "c": True, "d": 0.5})
ERROR = messages.RequestResult(messages.Failure(4, "text"), [], None)
SAMPLES = {
    encoded(message)[0]: encoded(message)
    for message in (
        said.Hello(5, 7, "3.11.4", "1.26.0", ["msgpack", "json"], {"uid": ""}),
        said.Completed({"name": "m", "input": [{"dims": [-1]}]}),
        said.Initialized(True),
        said.Failed("load", messages.Failure(1, "text")),
        said.Result(9, 1, 2, 3, 4, [ANSWER, None, ERROR]),
        said.FreeInput([messages.BlockPlace(3, 64)]),
        said.NeedOutput(4096),
        said.Finalized(None),
        said.Detached(3),
        said.Respond(9, 1, True, ANSWER),
        said.HandedBack([9, 10]),
        said.Call(
            1,
            "other",
            -1,
            False,
            9,
            [PLACE],
            ["OUT"],
            messages.RequestOptions("id", "sequence", 3, 0, 5, {"a": 1}),
            ["third_0"],
        ),
        said.LocalCall("other_0", 1, 2, 3, 4, 5, 4, False, [PLACE]),
        said.Occupied(True),
        said.Followed(9, 5, [PLACE], [messages.RequestResult(None, [PLACE], None)]),
        said.CancelCall(1),
        said.Readiness(False, "not yet"),
        said.NewFamily(1, "name", "description", 2),
        said.NewMetric(2, 1, {"label": "value"}, [0.5, 1.0]),
        said.ChangeMetric(2, 0, "inf"),
        said.ReadMetric(3, 2),
        said.DropMetric(2),
        said.LoadModel(4, "other", "{}", [PLACE]),
        said.UnloadModel(5, "other", False),
        said.IsModelReady(6, "other", "1"),
        said.Rescheduled(9, [0, 2]),
        said.DroppedOutput("OTU"),
        said.Wrote("1/calls.log"),
    )
}
ENCODERS = {"msgpack": msgspec.msgpack.encode, "json": lambda value: json.dumps(value).encode()}


@pytest.mark.parametrize("module", [said, host_messages], ids=["stub", "host"])
def test_every_message_of_a_module_has_a_kind(module):
    parts = {
        host_messages.DebuggerPoint,
        host_messages.ModelToLoad,
        host_messages.ExecuteRequest,
        host_messages.RegionSource,
        host_messages.OutputPlace,
        host_messages.InputSignature,
        host_messages.Signature,
        host_messages.NextStep,
        host_messages.Program,
    }
    defined = {
        each for each in vars(module).values() if hasattr(each, "_fields") and each.__module__ == module.__name__
    }
    known = module.HOST_MESSAGES if module is host_messages else module.STUB_MESSAGES
    assert set(known.values()) == defined - parts
    assert set(known) == set(HostMessage if module is host_messages else StubMessage)


def test_the_host_requires_the_fields_that_the_wire_defines():
    for kind, definition in said.STUB_MESSAGES.items():
        checked = getattr(stub_messages, definition.__name__)
        assert (checked.__struct_fields__, checked.__struct_config__.tag) == (definition._fields, kind)
        assert checked.__struct_defaults__ == ()


@pytest.mark.parametrize(
    "message",
    [
        host_messages.Load("json", None, ["m.py", "m", "m_0", "/m/1", False, [5678, True]]),
        host_messages.Flow(1, 0, None),
        host_messages.Probe(),
        host_messages.Collect(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_stub_reads_what_the_host_has_made(message):
    assert host_messages.decoded(json.loads(json.dumps(host_messages.encoded(message)))) == message


@pytest.mark.parametrize("fields", [[], [99], [HostMessage.FLOW, 1], [HostMessage.PROBE, 1]], ids=str)
def test_a_stub_refuses_what_no_host_of_its_version_says(fields):
    with pytest.raises(RemoteProtocolError):
        host_messages.decoded(fields)


def understood(codec, message):
    """A message of a stub as the host reads it, with its outputs, which the host only reads when they are new."""
    (decoded,) = stub_messages.decode(codec, Frame(ENCODERS[codec]([message]), bytearray()))
    for result in getattr(decoded, "results", [getattr(decoded, "result", None)]):
        if result is not None:
            msgspec.structs.force_setattr(result, "outputs", stub_messages.places_in(bytes(result.outputs), codec))
    return decoded


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("kind", StubMessage, ids=lambda kind: kind.name)
def test_every_message_is_understood(codec, kind):
    decoded = understood(codec, SAMPLES[kind])
    assert stub_messages.KIND[type(decoded)] == kind
    if kind == StubMessage.COMPLETED:
        assert stub_messages.completed_config(decoded, codec) == SAMPLES[kind][1]
        return
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
        (StubMessage.RESULT, -1, 1, 2, 3, 4, []),
        (StubMessage.RESULT, 1, 2**63, 2, 3, 4, []),
        (StubMessage.RESULT, 1, 1, 2, 3, 4, [[[8, "no such code"], [], None]]),
        (StubMessage.RESULT, 1, 1, 2, 3, 4, [[None, [["OUT", "FP32", [-1], 0, 0, 0]], None]]),
        (StubMessage.RESULT, 1, 1, 2, 3, 4, [[None, [["OUT", "FP32", [1], 0, -4, 4]], None]]),
        (StubMessage.RESULT, 1, 1, 2, 3, 4, [[None, [], {"nested": {}}]]),
        (StubMessage.RESULT, 1, 1, 2, 3, 4, None),
        (StubMessage.INITIALIZED, 1),
        (StubMessage.RESPOND, 1, -1, True, None),
        (StubMessage.RESPOND, 1, 0, None, None),
        (StubMessage.RESPOND, 1, 0, True, []),
        (StubMessage.RESCHEDULED, 1, [-1]),
        (StubMessage.RESCHEDULED, -1, []),
        (StubMessage.RESCHEDULED, 1, None),
        (StubMessage.HANDED_BACK, [-1]),
        (StubMessage.HANDED_BACK, 1),
        (StubMessage.HANDED_BACK, None),
        (StubMessage.CALL, -1, "m", -1, False, 0, [], [], None, []),
        (StubMessage.CALL, 1, None, -1, False, 0, [], [], None, []),
        (StubMessage.CALL, 1, "m", -1, False, -1, [], [], None, []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [["IN", "FP32", [1]]], [], None, []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [["IN", "FP32", [1] * 65, 0, 0, 4]], [], None, []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [], [None], None, []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [], [], ["", -1, 0, 0, 0, None], []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [], [], ["", 0, 2**32, 0, 0, None], []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [], [], ["", 0, 0, 0, -1, None], []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [], [], ["", 0, 0, 0, 0, {"a": None}], []),
        (StubMessage.CALL, 1, "m", -1, False, 0, [], [], ["", 0, 0, 0, 0, {"a": [1]}], []),
        (StubMessage.CANCEL_CALL, None),
        (StubMessage.READINESS, 1, ""),
        (StubMessage.READINESS, True, None),
        (StubMessage.NEW_FAMILY, 1, "name", "", 3),
        (StubMessage.NEW_METRIC, 1, 1, {"label": 1}, None),
        (StubMessage.NEW_METRIC, 1, 1, {}, ["inf"]),
        (StubMessage.CHANGE_METRIC, 1, 3, 0.0),
        (StubMessage.CHANGE_METRIC, 1, 0, "Infinity"),
        (StubMessage.LOAD_MODEL, 1, "m", None, []),
        (StubMessage.IS_MODEL_READY, 1, "m", 1),
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
        understood(codec, message)


@pytest.mark.parametrize(
    ("options", "version"),
    [
        (["", 2**64, 0, 0, 0, None, 0, ""], -1),
        (["", 0, 0, 2**63, 0, None, 0, ""], -1),
        (["", 0, 0, 0, 2**64, None, 0, ""], -1),
        (["", 0, 0, 0, 0, {"a": 2**63}, 0, ""], -1),
        (["", 0, 0, 0, 0, {"a": -(2**63) - 1}, 0, ""], -1),
        (None, 2**63),
    ],
)
def test_json_numbers_that_no_other_stub_could_be_sent(options, version):
    """They would go on in a message to another model's process, whose codec may be unable to say them."""
    message = (StubMessage.CALL, 1, "m", version, False, 0, [], [], options, [])
    with pytest.raises(RemoteProtocolError):
        stub_messages.decode("json", Frame(json.dumps([message]).encode(), bytearray()))


@pytest.mark.parametrize("codec", ENCODERS)
def test_numbers_as_large_as_they_may_be(codec):
    options = ["", 2**64 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, {"a": 2**63 - 1, "b": -(2**63)}, 2**63 - 1, ""]
    message = (StubMessage.CALL, 2**63 - 1, "m", -(2**63), False, 2**63 - 1, [], [], options, [])
    (call,) = stub_messages.decode(codec, Frame(ENCODERS[codec]([message]), bytearray()))
    assert msgspec.to_builtins(call.options) == options
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(call)) == list(msgspec.to_builtins(call))


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


ANY_TIME = {
    StubMessage.FREE_INPUT,
    StubMessage.NEED_OUTPUT,
    StubMessage.DETACHED,
    StubMessage.DROP_METRIC,
    StubMessage.WROTE,
}
"""Once LOAD is on its way, until the stub is gone."""

QUESTIONS = {
    StubMessage.NEW_FAMILY,
    StubMessage.NEW_METRIC,
    StubMessage.CHANGE_METRIC,
    StubMessage.READ_METRIC,
    StubMessage.LOAD_MODEL,
    StubMessage.UNLOAD_MODEL,
    StubMessage.IS_MODEL_READY,
}
SERVING = {
    StubMessage.RESULT,
    StubMessage.RESPOND,
    StubMessage.RESCHEDULED,
    StubMessage.DROPPED_OUTPUT,
    StubMessage.HANDED_BACK,
    StubMessage.CALL,
    StubMessage.LOCAL_CALL,
    StubMessage.OCCUPIED,
    StubMessage.FOLLOWED,
    StubMessage.CANCEL_CALL,
    StubMessage.READINESS,
}


def test_what_is_legal_when():
    assert set(LEGAL) == set(StubState)
    assert {state: set(legal) for state, legal in LEGAL.items()} == {
        StubState.STARTING: {StubMessage.HELLO, StubMessage.FAILED},
        StubState.LOADING: ANY_TIME | {StubMessage.COMPLETED, StubMessage.FAILED},
        StubState.LOADED: ANY_TIME,
        StubState.INITIALIZING: ANY_TIME | QUESTIONS | {StubMessage.INITIALIZED, StubMessage.FAILED},
        StubState.READY: ANY_TIME | QUESTIONS | SERVING,
        StubState.FINALIZING: ANY_TIME | QUESTIONS | SERVING | {StubMessage.FINALIZED},
        StubState.GONE: set(),
    }
    assert set(StubMessage) == set().union(*LEGAL.values())
