"""Reads an infer request's JSON step by step in the reference's order, so that the first mistake is the one reported.

Used by: ``infer_request``, for every document that its typed decoder refuses or that has unusual contents. Most of them
end in an error; some (NaN literals, deep nesting) are valid and give the same plan as the fast path.
"""

from dataclasses import dataclass
from typing import Any

from pybackend.errors import InferenceError, invalid
from pybackend.inference.region import FindRegion, RegionOutput, RegionPart, no_region, tensor_in_region
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import MOST_DIMS, InputTensor, element_count
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.classification import ClassRequest
from pybackend.protocol.infer_plan import InferPlan, OutputFormat, body_size_error, output_format
from pybackend.protocol.json.document import (
    MAX_NESTING,
    NESTING_TEXT,
    as_array,
    as_bool,
    as_object,
    as_string,
    as_unsigned,
    member,
    misspelt,
    optional,
    parse_document,
    type_error,
)
from pybackend.protocol.json.outline import CutTensors
from pybackend.protocol.json.parameters import apply_json_parameters
from pybackend.protocol.json.tensor import FLOATS, UNSIGNED, encode_values, is_json_integer
from pybackend.protocol.limits import (
    BodyLimits,
    classes_in_region_error,
    datatype_error,
    region_size_error,
    repeated_error,
    too_many_dims_error,
)
from pybackend_wire.dtypes import DATATYPES, ITEMSIZE

_BINARY_DATA_SIZE = "binary_data_size"
_REGION, _OFFSET, _BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(slots=True)
class DocumentReader:
    """Reads one document.

    ``available_bytes`` follow the JSON part (None if unknown yet). ``cut_tensors`` receive the tensors whose data was
    cut out of the document; None if it is complete.
    """

    signature: ModelSignature
    model_version: str
    limits: BodyLimits
    has_header_length: bool
    available_bytes: int | None
    cut_tensors: CutTensors | None = None
    find_region: FindRegion = no_region

    def read(self, text: bytes) -> InferPlan:
        document = parse_document(text, None if self.cut_tensors is None else self.cut_tensors.offset)
        request = InferenceRequest(self.signature.model_name, self.model_version)
        binary_default = self._read_head(document, request)
        binary_inputs = self._read_inputs(document, request)
        binary_bytes = sum(size for _, size in binary_inputs)
        if self.available_bytes is not None and self.available_bytes != binary_bytes:
            raise body_size_error(binary_inputs, self.available_bytes, request.model_name)
        wanted_format = self._read_outputs(document, request, binary_default)
        return InferPlan(request, binary_inputs, binary_bytes, wanted_format)

    def _read_head(self, document: Any, request: InferenceRequest) -> bool:
        """Set id and request parameters; returns the default form of outputs."""
        if type(document) is not dict:
            raise type_error("inputs", "non-object as object")
        request.id = as_string(optional(document, "id", ""), "id")
        return apply_json_parameters(request, _parameters(document))

    def _read_inputs(self, document: Any, request: InferenceRequest) -> list[tuple[InputTensor, int]]:
        binary_inputs: list[tuple[InputTensor, int]] = []
        left = self.available_bytes
        names: set[str] = set()
        for item in as_array(member(document, "inputs"), "inputs"):
            tensor, size = self._read_input(item, names, request)
            request.inputs.append(tensor)
            if size is None:
                continue
            binary_inputs.append((tensor, size))
            if left is not None:
                if size > left:
                    raise body_size_error([(tensor, size)], left, request.model_name)
                left -= size
        return binary_inputs

    def _read_input(self, item: Any, names: set[str], request: InferenceRequest) -> tuple[InputTensor, int | None]:
        """One input, with its JSON data or with the size of its binary data."""
        parameters = _input_source(item)
        name = as_string(member(item, "name"), "name")
        try:
            return self._read_tensor(name, item, parameters, names, request)
        except InferenceError as error:
            raise of_input(error, name) from None

    def _read_tensor(
        self, name: str, item: dict[str, Any], parameters: dict[str, Any], names: set[str], request: InferenceRequest
    ) -> tuple[InputTensor, int | None]:
        datatype = as_string(member(item, "datatype"), "datatype")
        dims = as_array(member(item, "shape"), "shape")
        if len(dims) > MOST_DIMS:
            raise too_many_dims_error(name, len(dims))
        shape = [as_unsigned(dim, "shape") for dim in dims]
        if datatype not in DATATYPES:
            raise datatype_error(name, datatype)
        if name in names:
            raise repeated_error("input", name, request.id)
        names.add(name)
        count = element_count(name, datatype, shape)
        tensor = InputTensor(name, datatype, shape)
        if optional(parameters, _REGION) is not None:
            part = self._region_part(parameters, name)
            request.regions = request.regions or {}
            return tensor_in_region(name, datatype, shape, part), None
        if optional(parameters, _BINARY_DATA_SIZE) is None:
            self._take_data(tensor, item["data"], count)
            return tensor, None
        size = as_unsigned(parameters[_BINARY_DATA_SIZE], _BINARY_DATA_SIZE)
        if size and not self.has_header_length:
            raise invalid(
                "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when "
                "passing inputs in binary data format. The header's full name is Inference-Header-Content-Length."
            )
        return tensor, size

    def _read_outputs(self, document: dict[str, Any], request: InferenceRequest, binary_default: bool) -> OutputFormat:
        forms: dict[str, bool] = {}
        classes: dict[str, ClassRequest] = {}
        for item in as_array(optional(document, "outputs", []), "outputs"):
            name = as_string(member(item, "name"), "name")
            if name in forms:
                raise repeated_error("output", name, request.id)
            parameters = _parameters(item)
            forms[name] = _output_is_binary(parameters)
            if optional(parameters, _REGION) is not None:
                request.regions = request.regions or {}
                request.regions[name] = RegionOutput.of(self._region_part(parameters, name))
            count = _class_count(parameters)
            if count and name in self.signature.outputs:  # the validation reports unknown names
                labels = self.signature.outputs[name].labels
                classes[name] = ClassRequest(count, self.signature.max_batch_size > 0, labels)
        request.requested_outputs = tuple(forms)
        return output_format(forms, binary_default, classes)

    def _region_part(self, parameters: dict[str, Any], tensor_name: str) -> RegionPart:
        region = as_string(parameters[_REGION], _REGION)
        offset = as_unsigned(optional(parameters, _OFFSET, 0), _OFFSET)
        if optional(parameters, _BYTE_SIZE) is None:
            self.find_region(region, offset, 0)  # an unknown region is the first mistake
            raise region_size_error(tensor_name)
        return self.find_region(region, offset, as_unsigned(parameters[_BYTE_SIZE], _BYTE_SIZE))

    def _take_data(self, tensor: InputTensor, data: Any, count: int) -> None:
        """Give a tensor the wire bytes of its JSON ``data`` member, now or later."""
        if self.cut_tensors is None or not self.cut_tensors.add(tensor, as_array(data, "data"), count):
            tensor.data = self._encode_data(tensor, data, count)
            return
        self.limits.check_json_tensor(tensor.name, count * ITEMSIZE[tensor.datatype])

    def _encode_data(self, tensor: InputTensor, data: Any, count: int) -> bytes:
        """Wire bytes of a JSON ``data`` member."""
        datatype = tensor.datatype
        as_array(data, "data")
        if ITEMSIZE[datatype]:
            self.limits.check_json_tensor(tensor.name, count * ITEMSIZE[datatype])
        values: list[Any] = []
        flatten(data, 1, values)
        check_values(datatype, values if datatype == "BYTES" else values[:count])
        if datatype == "BYTES":
            self.limits.check_json_tensor(tensor.name, sum(4 + len(value.encode()) for value in values))
        if len(values) > count:
            raise surplus_elements_error(datatype, count)
        if len(values) < count:
            raise missing_elements_error(count)
        return encode_values(datatype, values)


def _input_source(item: Any) -> dict[str, Any]:
    """The input's parameters, after checking that it has exactly one source of data."""
    item = as_object(item, "inputs")
    parameters = _parameters(item)
    named = [
        name
        for name, parent in (("data", item), (_BINARY_DATA_SIZE, parameters), (_REGION, parameters))
        if optional(parent, name) is not None
    ]
    if len(named) != 1:
        found = "set " + " ".join(f"'{name}'" for name in named) if named else f"no field is set{_no_source(item)}"
        raise invalid(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {found}"
        )
    return parameters


def _parameters(parent: dict[str, Any]) -> dict[str, Any]:
    return as_object(optional(parent, "parameters", {}), "parameters")


def _no_source(item: dict[str, Any]) -> str:
    advice = misspelt(item, "data") or 'Add the elements, as in "data": [1, 2]'
    return f". {advice}"


def of_input(error: InferenceError, name: str) -> InferenceError:
    """An error about a member of an input, with the input's name."""
    if not error.message.startswith(("Unable to parse", "Failed to parse")):
        return error  # has it already, or is about the document
    return InferenceError(f"{error.message}, in input '{name}'", error.code)


def surplus_elements_error(datatype: str, count: int) -> InferenceError:
    """The error for more elements than the ``count`` of the shape."""
    first = "shape" if datatype == "BYTES" else "Shape"
    return InferenceError(
        f"Unable to parse 'data': {first} does not match true shape of 'data' field. By 'shape' there are {count} "
        "elements, and 'data' has more"
    )


def missing_elements_error(count: int) -> InferenceError:
    """The error for fewer elements than the ``count`` of the shape."""
    return InferenceError(
        f"Failed to parse 'data' field: shape does not match true shape. By 'shape' there are {count} elements, and "
        "'data' has fewer"
    )


def check_values(datatype: str, values: list[Any]) -> None:
    """Check the JSON types of a tensor's elements."""
    if datatype == "BYTES":
        if any(type(value) is not str for value in values):
            raise InferenceError("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
    elif datatype not in FLOATS or any(type(value) is not float for value in values):
        # Floats need no look at each value: NaN and infinities among many numbers.
        for value in values:
            _check_number(datatype, value)


def flatten(values: list[Any], depth: int, flat: list[Any]) -> None:
    """Append elements in order. As in the reference, an array's first member determines the type of all its members."""
    if depth >= MAX_NESTING:
        raise invalid(f"Unable to parse 'data': {NESTING_TEXT}")
    if not values or type(values[0]) is not list:
        flat.extend(values)
        return
    for value in values:
        flatten(as_array(value, "data"), depth + 1, flat)


def _check_number(datatype: str, value: Any) -> None:
    if datatype == "BOOL":
        if type(value) is not bool:
            raise type_error("data", "non-boolean as boolean")
    elif datatype in FLOATS:
        if type(value) is not float and type(value) is not int:
            raise type_error("data", "non-number as double")
        try:
            float(value)
        except OverflowError:
            raise InferenceError("Unable to parse 'data': Number too big to be stored in double.") from None
    elif not is_json_integer(datatype, value):
        sign = "unsigned" if datatype in UNSIGNED else "signed"
        raise type_error("data", f"non-{sign}-integer as {sign}-integer")


def _class_count(parameters: dict[str, Any]) -> int:
    return as_unsigned(optional(parameters, "classification", 0), "classification")


def _output_is_binary(parameters: dict[str, Any]) -> bool:
    classes = _class_count(parameters)
    binary = as_bool(optional(parameters, "binary_data", False), "binary_data")
    if optional(parameters, _REGION) is not None:
        if classes:
            raise classes_in_region_error()
        if binary:
            raise invalid("Output can't set both 'shared_memory_region' and 'binary_data'")
    return binary
