"""Parses a gRPC infer request into a plan: the station between ``message`` and an admission.

Usage: a front end calls :func:`~pybackend.protocol.grpc.message.split_message`, opens an admission to the model that
the message names, and calls :func:`decode_message`. A request whose head was seen before costs no protobuf. All others
are read in the order of the reference's checks.
"""

import re
from functools import partial
from itertools import product
from math import prod
from typing import Any

from pybackend.errors import InferenceError, invalid
from pybackend.inference.region import FindRegion, RegionOutput, RegionPart, no_region, tensor_in_region
from pybackend.inference.request import InferenceRequest, ParameterValue, RequestFlags
from pybackend.inference.tensor import MOST_DIMS, InputTensor
from pybackend.inference.validation import validate_header
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.classification import ClassRequest
from pybackend.protocol.grpc.contents import cut_contents, encode_contents
from pybackend.protocol.grpc.message import InferMessage, parse_part
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, OutputFormat
from pybackend.protocol.limits import (
    BodyLimits,
    classes_in_region_error,
    datatype_error,
    region_size_error,
    repeated_error,
    too_many_dims_error,
)
from pybackend.protocol.plan_cache import PlanCache
from pybackend.protocol.request_parameters import RESERVED_PREFIX, Readers, apply_parameters
from pybackend.protocol.steps import Steps, at_once
from pybackend_wire.dtypes import DATATYPES, ITEMSIZE

EMPTY_FINAL = "triton_enable_empty_final_response"

BOOL, INT64, STRING, DOUBLE, UINT64 = "bool_param", "int64_param", "string_param", "double_param", "uint64_param"
_CUSTOM = frozenset({BOOL, INT64, STRING, DOUBLE})

_REGION, _OFFSET, _BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


def decode_message(
    message: InferMessage,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    plans: PlanCache | None,
    find_region: FindRegion = no_region,
) -> InferPlan:
    """The request in a message.

    The plan's inputs have their bytes. It has passed ``validate_header``, and ``plans`` remember it unless they are
    None. All outputs are binary.
    """
    plan = None if plans is None else plans.filled(message.head, message.raw)
    if plan is not None:
        if message.id or message.parameters:
            _apply_parameters(plan, message)
        return plan
    return at_once(decode_in_steps(message, signature, model_version, limits, plans, find_region))


def decode_in_steps(
    message: InferMessage,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    plans: PlanCache | None,
    find_region: FindRegion = no_region,
) -> Steps[InferPlan]:
    """Like :func:`decode_message`, in steps of a few milliseconds; for messages that are large and whole."""
    raw_sizes = [len(data) for data in message.raw]
    plan = yield from _plan_unknown(message, signature, model_version, limits, plans, raw_sizes, find_region)
    for (tensor, _), data in zip(plan.binary_inputs, message.raw, strict=False):
        tensor.data = data
    return plan


def plan_arriving(
    message: InferMessage,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    plans: PlanCache | None,
    find_region: FindRegion = no_region,
) -> InferPlan:
    """The request in a message whose raw tensors have not arrived.

    At least one will follow. ``binary_inputs`` have the sizes that follow from their shapes; BYTES tensors may have
    any.
    """
    plan = None if plans is None else plans.get(message.head)
    if plan is None:
        return at_once(_plan_unknown(message, signature, model_version, limits, plans, None, find_region))
    _apply_parameters(plan, message)
    return plan


def no_data_error(tensor_name: str, model_name: str) -> InferenceError:
    """The error for an input without contents for which there is no raw tensor."""
    return invalid(f"unable to find data for input tensor '{tensor_name}' for model '{model_name}' in request.")


def _apply_parameters(plan: InferPlan, message: InferMessage) -> None:
    plan.request.id = message.id
    if message.parameters:
        parameters = parse_part(message.parameters).parameters
        plan.wants_empty_final = apply_parameters(plan.request, parameters, EMPTY_FINAL, _READERS, _custom_parameter)


def _plan_unknown(
    message: InferMessage,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    plans: PlanCache | None,
    raw_sizes: list[int] | None,
    find_region: FindRegion,
) -> Steps[InferPlan]:
    """The plan of a message whose head is new, or whose tensors have wrong sizes; without raw tensors."""
    skeleton, cut = cut_contents(message.head)
    head = parse_part(skeleton)
    plan = InferPlan(InferenceRequest(signature.model_name, model_version), [], 0, ALL_BINARY)
    _apply_parameters(plan, message)
    request = plan.request
    names: set[str] = set()
    for item in head.inputs:
        request.inputs.append(_tensor(item, names, request.id))
    plan.output_format = _read_outputs(head.outputs, request, signature, find_region)
    has_raw = raw_sizes is None or bool(raw_sizes)
    for place, (item, tensor) in enumerate(zip(head.inputs, list(request.inputs), strict=True)):
        part = _source_region(item, has_raw, signature.model_name, find_region)
        if part is not None:
            request.inputs[place] = tensor_in_region(tensor.name, tensor.datatype, tensor.shape, part)
            request.regions = request.regions or {}
            continue
        if item.HasField("contents"):
            contents = cut.get(place)
            if contents is None:
                item.contents.DiscardUnknownFields()
                contents = item.contents.SerializeToString()
            steps = encode_contents(tensor.name, tensor.datatype, contents, signature.model_name, limits)
            tensor.data = yield from steps
            continue
        if raw_sizes is None:
            size = prod(tensor.shape) * ITEMSIZE[tensor.datatype]
        elif len(plan.binary_inputs) < len(raw_sizes):
            size = raw_sizes[len(plan.binary_inputs)]
        else:
            raise no_data_error(tensor.name, signature.model_name)
        plan.binary_inputs.append((tensor, size))
        plan.binary_bytes += size
    plan.checked = validate_header(request, signature, plan.binary_inputs)
    if plans is not None:
        plans.put(message.head, plan)
    return plan


def _tensor(item: Any, names: set[str], request_id: str) -> InputTensor:
    """An input without its bytes."""
    name, datatype = item.name, item.datatype
    if len(item.shape) > MOST_DIMS:
        raise too_many_dims_error(name, len(item.shape))
    if datatype not in DATATYPES:
        raise datatype_error(name, datatype)
    if name in names:
        raise repeated_error("input", name, request_id)
    names.add(name)
    return InputTensor(name, datatype, list(item.shape))


def _source_region(item: Any, has_raw: bool, model_name: str, find_region: FindRegion) -> RegionPart | None:
    """The part of a region that has an input's data, None if it is in the message.

    Refuses an input with two sources.
    """
    named = _named_region(item.parameters, item.name) if item.parameters else None
    if named is not None:
        if item.HasField("contents"):
            raise invalid(
                f"unexpected 'content' provided when using shared memory for input tensor '{item.name}' for model "
                f"'{model_name}'"
            )
        return find_region(*named)
    if has_raw and item.HasField("contents"):
        raise invalid(
            f"contents field must not be specified when using raw_input_contents for '{item.name}' for model "
            f"'{model_name}'"
        )
    return None


def _named_region(parameters: Any, tensor_name: str) -> tuple[str, int, int] | None:
    """The name of a shared memory region, an offset and a size in bytes.

    None if a tensor's parameters name no region.
    """
    region = _memory_parameter(parameters, _REGION, STRING, tensor_name)
    offset = _memory_parameter(parameters, _OFFSET, INT64, tensor_name)
    byte_size = _memory_parameter(parameters, _BYTE_SIZE, INT64, tensor_name)
    if region is None:
        for name, value in ((_OFFSET, offset), (_BYTE_SIZE, byte_size)):
            if value is not None:
                raise invalid(
                    f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor_name}'"
                )
        return None
    if byte_size is None:
        raise region_size_error(tensor_name)
    return region, offset or 0, byte_size


def _memory_parameter(parameters: Any, name: str, kind: str, tensor_name: str) -> Any:
    if name not in parameters:
        return None
    value = parameters[name]
    if value.WhichOneof("parameter_choice") != kind:
        raise _type_error(name, f" parameter for tensor '{tensor_name}', expected {kind}.")
    return getattr(value, kind)


def _read_outputs(
    outputs: Any, request: InferenceRequest, signature: ModelSignature, find_region: FindRegion
) -> OutputFormat:
    classes: dict[str, ClassRequest] = {}
    names: dict[str, None] = {}
    for item in outputs:
        name = item.name
        if name in names:
            raise repeated_error("output", name, request.id)
        names[name] = None
        if not item.parameters:
            continue
        count = _class_count(item.parameters)
        named = _named_region(item.parameters, name)
        if named is not None:
            if count:
                raise classes_in_region_error()
            request.regions = request.regions or {}
            request.regions[name] = RegionOutput.of(find_region(*named))
        if count and name in signature.outputs:  # the validation reports unknown names
            classes[name] = ClassRequest(count, signature.max_batch_size > 0, signature.outputs[name].labels)
    request.requested_outputs = tuple(names)
    return OutputFormat(binary_default=True, classes=classes) if classes else ALL_BINARY


def _class_count(parameters: Any) -> int:
    """The number of classes, 0 if none are requested."""
    if "classification" not in parameters:
        return 0
    value = parameters["classification"]
    if value.WhichOneof("parameter_choice") != INT64:
        raise _type_error("classification", " parameter, expected int64_param")
    if value.int64_param <= 0:
        raise invalid("invalid value for 'classification' parameter, expected >= 0")
    return int(value.int64_param)


# Parameters of requests


def _custom_parameter(name: str, value: Any) -> ParameterValue:
    if name.startswith(RESERVED_PREFIX):
        raise invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {EMPTY_FINAL}"
        )
    kind = value.WhichOneof("parameter_choice")
    if kind not in _CUSTOM:
        raise invalid(f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param.")
    return getattr(value, kind)  # type: ignore[no-any-return]


def _value_of(value: Any, name: str, *, kinds: tuple[str, ...]) -> Any:
    kind = value.WhichOneof("parameter_choice")
    if kind in kinds:
        return getattr(value, kind)
    raise _type_error(name, f" parameter, expected {' or '.join(kinds)}.")


def _type_error(name: str, expected: str) -> InferenceError:
    """The error for a parameter of a message that has the wrong type; ``expected`` is the rest of the text."""
    return invalid(f"invalid value type for '{name}'{expected}")


def _sequence_id(value: Any, name: str) -> int | str:
    found: int | str = _value_of(value, name, kinds=(INT64, STRING))
    return found if isinstance(found, str) else found % 2**64  # models see the number without a sign, in 64 bits


def _number(value: Any, name: str, *, kinds: tuple[str, ...]) -> int:
    number: int = _value_of(value, name, kinds=kinds)
    if number < 0:
        raise invalid(f"invalid value for '{name}', expected value >= 0.")
    return number


_boolean = partial(_value_of, kinds=(BOOL,))

_READERS: Readers = {
    EMPTY_FINAL: _boolean,
    "sequence_id": _sequence_id,
    "sequence_start": _boolean,
    "sequence_end": _boolean,
    "priority": partial(_number, kinds=(INT64, UINT64)),
    "timeout": partial(_number, kinds=(INT64,)),
}


_START, _END = b'"\x14\n\x0esequence_start\x12\x02\x08', b'"\x12\n\x0csequence_end\x12\x02\x08'
_FLAG = rb"((?:(?:%b|%b)[\0\1])*+)" % (_START, _END)
_SEQUENCE = re.compile(
    _FLAG + rb'"(.)\n\x0bsequence_id\x12(.)(?:\x10([\x80-\xff]{0,8}[\0-\x7f])|\x1a(.)(.{0,100}?))' + _FLAG,
    re.DOTALL,
).fullmatch
"""The parameters of a request of a sequence, as encoders write them: flags, the id, which is a number or a text, and
flags."""

_STARTS = {b"": 0, _START + b"\0": 0, _START + b"\1": RequestFlags.SEQUENCE_START}
_ENDS = {b"": 0, _END + b"\0": 0, _END + b"\1": RequestFlags.SEQUENCE_END}
_FLAGS = {
    flags: start | end
    for (start_flag, start), (end_flag, end) in product(_STARTS.items(), _ENDS.items())
    for flags in (start_flag + end_flag, end_flag + start_flag)
}


def sequence_of(parameters: bytes) -> tuple[int | str, int] | None:
    """A sequence's id and flags, of which alone a message's parameters speak.

    None if there are others, or in an unusual form.
    """
    match = _SEQUENCE(parameters)
    if match is None:
        return None
    before, size, value_size, number, text_size, text, after = match.groups()
    flags = _FLAGS.get(before + after)
    value = 0
    if number is not None:
        nbytes = 1 + len(number)
        for byte in reversed(number):
            value = value << 7 | byte & 0x7F
        sequence_id: int | str = value
    else:
        nbytes = 2 + text_size[0]
        try:
            sequence_id = text.decode()
        except UnicodeDecodeError:
            return None
        if text_size[0] != len(text):
            return None
    if flags is None or value_size[0] != nbytes or size[0] != nbytes + _AROUND_VALUE_BYTES:
        return None
    return sequence_id, flags


_AROUND_VALUE_BYTES = len(b"\n\x0bsequence_id\x12") + 1
"""The parameter's name, and the tag and length of its value."""
