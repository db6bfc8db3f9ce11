"""Converts config.pbtxt and configuration JSON to and from a complete document. Used at load time, never per request.

The document is the configuration as models and clients see it: protobuf field names, every scalar, list and map present
even at its default, enums as names, 64-bit integers as numbers, map keys as text, sub-messages only if set.

This is the only module of the package that touches protobuf. ``schema`` has the message classes.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pybackend.author_files import read_beneath
from pybackend.errors import ModelConfigError
from pybackend.modelconfig.bounds import MOST_CONFIG_BYTES
from pybackend.modelconfig.parse_errors import nearest, parse_reason
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.modelconfig.text_form import rewritten

Document = dict[str, Any]

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_SHOWN_LENGTH = 60
_NO_CHARACTER = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that stand for no byte."""

_ModelConfig = message_class("inference.ModelConfig")

FIELD_NAMES: tuple[str, ...] = tuple(field.name for field in _ModelConfig.DESCRIPTOR.fields)
"""The configuration's fields in the order of its schema, which is the order of a document's keys."""


def read_config_text(model_directory: Path, name: str) -> str:
    """The text of a configuration file, in which surrogates stand for bytes that are not UTF-8. Blocking."""
    path = model_directory / name
    try:
        return read_beneath(model_directory, name, MOST_CONFIG_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise ModelConfigError(f"failed to read text proto from {path}: {error.strerror}") from None


def read_config_file(path: Path) -> Document:
    """The document of a config.pbtxt. Blocking."""
    return parse_config_text(read_config_text(path.parent, path.name), str(path))


def parse_config_text(text: str, source: str) -> Document:
    """The document of a configuration in protobuf text format; see :func:`read_config_text`."""
    if _NO_CHARACTER.search(text):
        raise ModelConfigError(f"failed to read text proto from {source}: it holds surrogates, which are no characters")
    message = _ModelConfig()
    try:
        text = rewritten(text)
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        reason = parse_reason(str(error), error.GetLine(), error.GetColumn(), text, message.DESCRIPTOR.file.pool)
        raise ModelConfigError(f"failed to read text proto from {source}: {reason}") from None
    return _document(message, f"failed to read text proto from {source}: ")


def repeated_step_inputs(text: str) -> list[tuple[int, str, str]]:
    """Inputs that an ensemble's config.pbtxt maps more than once: a protobuf map silently keeps the last repeated key."""
    message = _lenient_model_config()()
    text_format.Parse(rewritten(text), message)
    repeated = []
    for number, step in enumerate(message.ensemble_scheduling.step):
        uses = Counter(entry.key for entry in step.input_map)
        repeated += [(number, step.model_name, name) for name, count in uses.items() if count > 1]
    return repeated


@cache
def _lenient_model_config() -> Any:
    """The class of model configurations in which a step's maps are lists of entries, so that keys may be repeated."""
    file = FileDescriptorProto()
    _ModelConfig.DESCRIPTOR.file.CopyToProto(file)
    ensembling = next(each for each in file.message_type if each.name == "ModelEnsembling")
    for entry in (entry for step in ensembling.nested_type for entry in step.nested_type):
        entry.options.map_entry = False
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(_ModelConfig.DESCRIPTOR.full_name))


def parse_config_json(document: Mapping[str, Any], source: str) -> Document:
    """The complete document of a configuration given as JSON, partial or not; ``{}`` gives all defaults.

    Field names are written as in config.pbtxt or in camel case. The given document is not modified.
    """
    prefix = f"failed to read model configuration from {source}: "
    return _document(_message(document, prefix), prefix)


def serialize_config(document: Mapping[str, Any]) -> bytes:
    """A complete configuration as a serialized ``inference.ModelConfig``."""
    written: bytes = _message(document, "").SerializeToString()
    return written


def format_config_text(document: Mapping[str, Any]) -> str:
    """A document as config.pbtxt text."""
    message = _message(document, "failed to write model configuration: ")
    return str(text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True))


# --- messages and documents -----------------------------------------------------------------------------------------


class _Field(NamedTuple):
    """Properties of one field that the conversions need; read from the descriptor once per message type."""

    name: str
    descriptor: Any
    is_map: bool
    is_repeated: bool
    has_presence: bool


@cache
def _fields(descriptor: Descriptor) -> tuple[_Field, ...]:
    return tuple(_field(field) for field in descriptor.fields)


def _field(field: Any) -> _Field:
    try:
        is_repeated = field.is_repeated
    except AttributeError:  # protobuf before 6.31
        is_repeated = field.label == FieldDescriptor.LABEL_REPEATED
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return _Field(field.name, field, is_map, is_repeated, field.has_presence)


@cache
def _fields_by_name(descriptor: Descriptor) -> dict[str, _Field]:
    """Fields by config.pbtxt name and, as JSON allows, by camel case name."""
    fields = _fields(descriptor)
    return {field.descriptor.camelcase_name: field for field in fields} | {field.name: field for field in fields}


def _document(message: Any, prefix: str) -> Document:
    document: Document = {}
    for field in _fields(message.DESCRIPTOR):
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_map:
            item = field.descriptor.message_type.fields_by_name["value"]
            document[field.name] = {str(key): _json_value(item, value[key], prefix) for key in sorted(value)}
        elif field.is_repeated:
            document[field.name] = [_json_value(field.descriptor, element, prefix) for element in value]
        else:
            document[field.name] = _json_value(field.descriptor, value, prefix)
    return document


def _json_value(field: Any, value: Any, prefix: str) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return _document(value, prefix)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        if known is None:
            names = ", ".join(field.enum_type.values_by_name)
            raise ModelConfigError(
                f"{prefix}field '{field.name}' of {field.containing_type.name}: no value has the number {value}. "
                f"Known: {names}."
            )
        return known.name
    if isinstance(value, float):
        if not isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        if kind == FieldDescriptor.CPPTYPE_FLOAT:
            return float(str(np.float32(value)))  # the shortest text that reads back as the same 32 bits
    return value


def _message(document: Mapping[str, Any], prefix: str) -> Any:
    message = _ModelConfig()
    _fill(message, document, "", prefix)
    return message


def _fill(message: Any, document: Any, path: str, prefix: str) -> None:
    if not isinstance(document, Mapping):
        example = ' such as {"string_value": "TEXT"}' if message.DESCRIPTOR.name == "ModelParameter" else ""
        raise _wrong(path.removesuffix("."), f"an object{example}", document, prefix)
    known = _fields_by_name(message.DESCRIPTOR)
    for key, value in document.items():
        field = known.get(key)
        if field is None:
            advice = nearest(str(key), list(message.DESCRIPTOR.fields_by_name))
            raise ModelConfigError(f"{prefix}there is no field '{path}{key}'.{advice}")
        if value is None:
            continue
        oneof = field.descriptor.containing_oneof
        if oneof is not None and message.WhichOneof(oneof.name) is not None:
            other = message.WhichOneof(oneof.name)
            raise ModelConfigError(f"{prefix}only one of '{path}{other}' and '{path}{field.name}' may be given")
        _set(message, field, value, path + field.name, prefix)


def _set(message: Any, field: _Field, value: Any, path: str, prefix: str) -> None:
    target = getattr(message, field.name)
    if field.is_map:
        if not isinstance(value, Mapping):
            raise _wrong(path, "an object", value, prefix)
        entry = field.descriptor.message_type
        for text, item in value.items():
            where = f"{path}[{text!r}]"
            key = _scalar(entry.fields_by_name["key"], text, where, prefix)
            if entry.fields_by_name["value"].message_type is not None:
                _fill(target[key], item, f"{where}.", prefix)
            else:
                target[key] = _scalar(entry.fields_by_name["value"], item, where, prefix)
    elif field.is_repeated:
        if not isinstance(value, list | tuple):
            raise _wrong(path, "a list", value, prefix)
        for index, item in enumerate(value):
            where = f"{path}[{index}]"
            if field.descriptor.message_type is not None:
                _fill(target.add(), item, f"{where}.", prefix)
            else:
                target.append(_scalar(field.descriptor, item, where, prefix))
    elif field.descriptor.message_type is not None:
        target.SetInParent()
        _fill(target, value, f"{path}.", prefix)
    else:
        setattr(message, field.name, _scalar(field.descriptor, value, path, prefix))


def _wrong(path: str, expected: str, value: Any, prefix: str) -> ModelConfigError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}..."
    return ModelConfigError(f"{prefix}field '{path}': expected {expected}, got {shown}")


_INTEGER_RANGE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _scalar(field: Any, value: Any, path: str, prefix: str) -> Any:
    """A JSON scalar as the protobuf setter expects it, by the rules of protobuf's JSON form."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if not isinstance(value, str) or not _is_unicode(value):
            raise _wrong(path, "text", value, prefix)
        return value
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise _wrong(path, "true or false", value, prefix)
        return value
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return _enum_number(field.enum_type, value, path, prefix)
    if kind in _INTEGER_RANGE:
        low, high = _INTEGER_RANGE[kind]
        number = _integer(value)
        if number is None or not low <= number <= high:
            raise _wrong(path, f"an integer from {low} to {high}", value, prefix)
        return number
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a number", value, prefix)
    return value


def _enum_number(enum: Any, value: Any, path: str, prefix: str) -> int:
    """The number of an enumeration's value, given by name or by number."""
    known = dict(enum.values_by_name if isinstance(value, str) else enum.values_by_number)
    if isinstance(value, bool) or not isinstance(value, str | int) or value not in known:
        raise _wrong(path, f"one of {', '.join(enum.values_by_name)}", value, prefix)
    return int(known[value].number)


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?[0-9]{1,20}", value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_unicode(text: str) -> bool:
    """False for text with lone surrogates: UTF-8, and therefore protobuf, cannot represent them."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
