"""Requests that this server sends to another one."""

import pytest

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.protocol.grpc.outgoing import encode_request


def test_parameters_keep_their_types():
    parameters = {"truth": True, "count": -3, "share": 0.25, "name": "x"}
    message = message_class("inference.ModelInferRequest")()
    message.ParseFromString(encode_request(InferenceRequest("m", "", parameters=parameters), streams=False))
    sent = {name: value.WhichOneof("parameter_choice") for name, value in message.parameters.items()}
    assert sent == {"truth": "bool_param", "count": "int64_param", "share": "double_param", "name": "string_param"}
    assert message.parameters["share"].double_param == 0.25


def test_a_number_beyond_64_bits_is_refused_by_name():
    request = InferenceRequest("m", "", parameters={"count": 1 << 64})
    with pytest.raises(InferenceError, match=r"^the request's parameter 'count' is 18446744073709551616, which "):
        encode_request(request, streams=False)
