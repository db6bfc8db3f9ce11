"""The messages that a stub may send, as types that msgspec checks while decoding: the host trusts nothing else.

The types are derived from :mod:`pybackend_wire.stub_messages`, field by field, with bounds for the numbers that the
wire only names. Type checkers see the wire's own tuples; decoding produces structs with the same fields.
"""

from collections.abc import Callable
from functools import reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from pybackend_wire import messages, stub_messages
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.framing import Frame
from pybackend_wire.messages import MOST_DIMENSIONS, MetricChange, MetricKind
from pybackend_wire.stub_messages import STUB_MESSAGES

UNSIGNED_MAX = 2**64 - 1

_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Signed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

MOST_ITEMS = 65_536
"""Most items of a list or table in a message: an item takes many times more memory and time than bytes in the frame."""

MOST_CONFIG_BYTES = 4 * 1024 * 1024
"""Most bytes of a configuration that a model has completed, checked before it is decoded."""

MOST_BLOCKS = 1_000_000
"""Most input blocks freed in one message: a model may release everything at once."""

_BOUNDED: dict[str, Any] = {
    "Natural": _Natural,
    "Signed": _Signed,
    "Unsigned": Annotated[int, Meta(ge=0)],  # up to 64 bits, which msgspec cannot express: see _check_options
    "Unsigned32": Annotated[int, Meta(ge=0, le=2**32 - 1)],
    "Code": Annotated[int, Meta(ge=0, le=int(max(ErrorCode)))],
    "MetricKindNumber": Annotated[int, Meta(ge=0, le=int(max(MetricKind)))],
    "MetricChangeNumber": Annotated[int, Meta(ge=0, le=int(max(MetricChange)))],
    "MetricValue": float | Literal["inf", "-inf", "nan"],
    "ParameterValue": bool | _Signed | float | str,
    "Shape": Annotated[list[_Natural], Meta(max_length=MOST_DIMENSIONS)],
    "Blocks": Annotated[list[tuple[_Natural, _Natural]], Meta(max_length=MOST_BLOCKS)],  # each identifies a lease
    "Document": msgspec.Raw,  # see completed_config
    "Outputs": msgspec.Raw,  # see places_in
}
"""Checked types for the type names in the wire's annotations."""


def _check_options(options: messages.RequestOptions) -> None:
    """Refuse values that json can express and msgpack cannot: the options are sent on to another stub."""
    correlation_id = options.correlation_id
    if options.timeout_us > UNSIGNED_MAX or (isinstance(correlation_id, int) and correlation_id > UNSIGNED_MAX):
        raise ValueError("a number beyond 64 bits")


def _bounded(hint: Any) -> Any:
    """Return the type of a field, with bounds for all lists and tables in it that have none."""
    parts = tuple(map(_bounded, get_args(hint)))
    if get_origin(hint) is list:
        return Annotated[list[parts[0]], Meta(max_length=MOST_ITEMS)]  # type: ignore[valid-type]
    if get_origin(hint) is dict:
        return Annotated[dict[parts[0], parts[1]], Meta(max_length=MOST_ITEMS)]  # type: ignore[valid-type]
    return reduce(or_, parts) if get_origin(hint) in {Union, UnionType} else hint


def _checked(definition: Any, tag: int | None = None) -> Any:
    """Make a struct with the fields of one of the wire's tuples, all of them required."""
    hints = get_type_hints(definition, vars(messages) | vars(stub_messages), _BOUNDED, include_extras=True)
    fields = [(name, _bounded(hints[name])) for name in definition._fields]
    extra = {"__post_init__": _check_options} if definition is messages.RequestOptions else {}
    return msgspec.defstruct(
        definition.__name__, fields, array_like=True, frozen=True, tag=tag, module=__name__, namespace=extra
    )


_PARTS = []
for _part in (messages.TensorPlace, messages.Failure, messages.RequestOptions, messages.RequestResult):
    _BOUNDED[_part.__name__] = _checked(_part)
    _PARTS.append(_BOUNDED[_part.__name__])

_TYPES = {kind: _checked(definition, int(kind)) for kind, definition in STUB_MESSAGES.items()}

KIND: dict[type, int] = {checked: kind for kind, checked in _TYPES.items()}
"""The kind of each message, for the table of legal messages."""

if TYPE_CHECKING:
    from pybackend_wire.messages import *  # noqa: F403
    from pybackend_wire.stub_messages import *  # noqa: F403

    Message = stub_messages.FromStub
else:
    globals().update({checked.__name__: checked for checked in (*KIND, *_PARTS)})
    Message = reduce(or_, KIND)
    Question = reduce(or_, (globals()[each.__name__] for each in get_args(stub_messages.Question)))

MOST_MESSAGES = 1024
"""Most messages in one frame; a stub puts fewer than a hundred into one."""

Messages = Annotated[list[Message], Meta(max_length=MOST_MESSAGES)]

_DECODERS: dict[str, msgspec.msgpack.Decoder[list[Message]] | msgspec.json.Decoder[list[Message]]] = {
    "msgpack": msgspec.msgpack.Decoder(Messages),
    "json": msgspec.json.Decoder(Messages),
}


def decode(codec: str, frame: Frame) -> list[Message]:
    """Decode the messages of a frame."""
    try:
        return _DECODERS[codec].decode(frame.metadata)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a frame does not decode: {error}") from error


_Places: Any = Annotated[list[_PARTS[0]], Meta(max_length=MOST_ITEMS)]  # type: ignore[valid-type]

_PLACE_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "msgpack": msgspec.msgpack.Decoder(_Places).decode,
    "json": msgspec.json.Decoder(_Places).decode,
}


def places_in(outputs: bytes, codec: str) -> list[messages.TensorPlace]:
    """Decode the outputs of a result, which recur: readers may know them by their bytes.

    Raises RemoteProtocolError if they are none.
    """
    try:
        places: list[messages.TensorPlace] = _PLACE_DECODERS[codec](outputs)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a frame does not decode: {error}") from error
    return places


def completed_config(completed: stub_messages.Completed, codec: str) -> dict[str, Any] | None:
    """Decode the result of ``auto_complete_config``.

    Raises RemoteProtocolError if it is not a configuration, or too long.
    """
    document = cast("msgspec.Raw", completed.config)
    nbytes = len(document)
    if nbytes > MOST_CONFIG_BYTES:
        raise RemoteProtocolError(f"the completed configuration has {nbytes} bytes, {MOST_CONFIG_BYTES} is the most")
    decode_config = msgspec.msgpack.decode if codec == "msgpack" else msgspec.json.decode
    try:
        return decode_config(document, type=dict[str, Any] | None)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a frame does not decode: {error}") from error
