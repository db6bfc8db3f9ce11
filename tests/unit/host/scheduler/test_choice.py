"""Which requests may share a batch."""

import pytest

from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import from_document
from pybackend.scheduler.choice import shape_key_of

FIXED = 'input { name: "FIXED" data_type: TYPE_FP32 dims: 4 }'
FREE = 'input { name: "FREE" data_type: TYPE_FP32 dims: -1 }'
RAGGED = 'input { name: "RAGGED" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }'
OPTIONAL = 'input { name: "OPTIONAL" data_type: TYPE_FP32 dims: 4 optional: true }'


def rule(*inputs):
    return shape_key_of(from_document(parse_config_text(" ".join(inputs), "config.pbtxt"), "config.pbtxt"))


def request(**shapes):
    return InferenceRequest("m", inputs=[InputTensor(name, "FP32", shape) for name, shape in shapes.items()])


@pytest.mark.parametrize("inputs", [(FIXED,), (RAGGED,), (FIXED, RAGGED)])
def test_all_may_where_no_shape_can_disagree(inputs):
    assert rule(*inputs) is None


@pytest.mark.parametrize(
    ("inputs", "one", "other", "together"),
    [
        ((FREE,), {"FREE": (1, 5)}, {"FREE": (3, 5)}, True),
        ((FREE,), {"FREE": (1, 5)}, {"FREE": (1, 6)}, False),
        ((FREE, RAGGED), {"FREE": (1, 5), "RAGGED": (1, 2)}, {"RAGGED": (1, 3), "FREE": (1, 5)}, True),
        ((FIXED, OPTIONAL), {"FIXED": (1, 4)}, {"FIXED": (2, 4)}, True),
        ((FIXED, OPTIONAL), {"FIXED": (1, 4)}, {"FIXED": (1, 4), "OPTIONAL": (1, 4)}, False),
        ((FREE, OPTIONAL), {"FREE": (1, 4)}, {"FREE": (1, 5)}, False),
    ],
)
def test_who_may_share(inputs, one, other, together):
    key = rule(*inputs)
    assert (key(request(**one)) == key(request(**other))) == together
