"""What requests are held against, taken from a finished configuration."""

import pytest

from pybackend.modelconfig.normalisation import with_scheduling
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import from_document
from pybackend.modelconfig.signature import ModelSignature, signature_of


def signature(text: str) -> ModelSignature:
    return signature_of(from_document(with_scheduling(parse_config_text(f'name: "m" {text}', "x"), 0), "x"))


def test_tensors_in_configured_order() -> None:
    found = signature(
        'max_batch_size: 3 input { name: "B" data_type: TYPE_FP32 dims: [ 2, 3 ] } input { name: "A" data_type: '
        'TYPE_STRING dims: -1 optional: true } output { name: "O" data_type: TYPE_BF16 dims: 1 }'
    )
    assert (found.model_name, found.max_batch_size, found.required_input_count, found.has_reshape) == ("m", 3, 1, False)
    assert list(found.inputs) == ["B", "A"]
    first, second = found.inputs.values()
    assert (first.datatype, first.dims, first.itemsize) == ("FP32", (2, 3), 4)
    assert (second.datatype, second.itemsize, second.optional) == ("BYTES", 0, True)
    assert found.outputs["O"].itemsize == 2


@pytest.mark.parametrize(
    ("max_batch_size", "dims", "reshape", "for_client", "for_model"),
    [
        (0, "[ 4, 3 ]", "{ shape: 12 }", [4, 3], [12]),
        (8, "1", "{ }", [5, 1], [5]),
        (8, "[ -1, 4 ]", "{ shape: [ -1, 2, 2 ] }", [2, 7, 4], [2, 7, 2, 2]),
        (0, "[ -1, 1, -1 ]", "{ shape: [ -1, -1 ] }", [5, 1, 6], [5, 6]),
    ],
)
def test_reshape(max_batch_size: int, dims: str, reshape: str, for_client: list[int], for_model: list[int]) -> None:
    found = signature(
        f'max_batch_size: {max_batch_size} input {{ name: "I" data_type: TYPE_FP32 dims: {dims} reshape {reshape} }} '
        f'output {{ name: "O" data_type: TYPE_FP32 dims: {dims} reshape {reshape} }}'
    )
    assert found.has_reshape
    assert found.shape_for_model(found.inputs["I"], for_client) == for_model
    assert found.shape_for_client(found.outputs["O"], for_model) == for_client


def test_shapes_stay_without_reshape_and_where_they_do_not_fit() -> None:
    found = signature(
        'input { name: "I" data_type: TYPE_FP32 dims: 4 } output { name: "O" data_type: TYPE_FP32 dims: 4 '
        "reshape { shape: [ 2, 2 ] } }"
    )
    assert found.shape_for_model(found.inputs["I"], [4]) == [4]
    assert found.shape_for_client(found.inputs["I"], [4]) == [4]
    assert found.shape_for_client(found.outputs["O"], [2, 3]) == [2, 3]
    assert found.shape_for_client(found.outputs["O"], [4]) == [4]
