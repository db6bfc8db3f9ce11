"""Encodes the messages of a frame: msgpack if both sides have it, otherwise json. Never pickle."""

import json
from typing import Any, Callable, List, NamedTuple, Sequence, Union

from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import Frame, frame_header


class Codec(NamedTuple):
    """An encoding of plain structures; ``loads`` raises ValueError (or a subclass) on garbage."""

    name: str
    dumps: "Callable[[Any], bytes]"
    loads: "Callable[[Union[bytes, bytearray]], Any]"


def _json_dumps(value: Any) -> bytes:
    # A model's texts may contain lone surrogates, which UTF-8 cannot express and no receiver accepts.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


JSON = Codec("json", _json_dumps, json.loads)


def available() -> "List[Codec]":
    """Return the codecs that this interpreter can use, the preferred one first."""
    try:
        import msgpack
    except ImportError:
        return [JSON]
    # The pure-Python fallback of msgpack costs 20 times the C extension, far more than json.
    if getattr(msgpack.Packer, "__module__", "").endswith("fallback"):
        return [JSON]
    packer = msgpack.Packer(autoreset=True, unicode_errors="replace")

    def loads(data: "Union[bytes, bytearray]") -> Any:
        try:
            return msgpack.unpackb(data, strict_map_key=True)
        except ValueError:
            raise
        except Exception as error:  # some of msgpack's exceptions are not ValueErrors
            raise ValueError(str(error)) from error

    return [Codec("msgpack", packer.pack, loads), JSON]


def encode_frame(codec: Codec, messages: "Sequence[Any]", tail: "Sequence[Any]" = ()) -> bytes:
    """Encode messages as one frame; ``tail`` holds bytes-like chunks in the order of the messages' offsets."""
    metadata = codec.dumps(messages)
    if not tail:
        return frame_header(len(metadata), 0) + metadata
    raw = b"".join(tail)
    return frame_header(len(metadata), len(raw)) + metadata + raw


def decode_frame(codec: Codec, frame: Frame) -> "List[List[Any]]":
    """Decode the messages of a frame."""
    try:
        messages = codec.loads(frame.metadata)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"metadata is not {codec.name}: {error}") from error
    if type(messages) is not list:
        raise RemoteProtocolError("metadata is not a list of messages")
    for message in messages:
        if type(message) is not list or not message or type(message[0]) is not int:
            raise RemoteProtocolError("metadata is not a list of messages")
    return messages
