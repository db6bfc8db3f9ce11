"""What tritonclient builds is read, and what is answered it reads: its own code on both ends of ours."""

import numpy as np
import pytest

from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.protocol.json.infer_response import encode_response
from pybackend_wire.dtypes import DATATYPES

http = pytest.importorskip("tritonclient.http")
client = http.InferenceServerClient
VALUES = {
    datatype: np.array([[0, 1, 2]]).astype(row.numpy)
    for datatype, row in DATATYPES.items()
    if row.numpy is not None and datatype != "BYTES"
} | {"BYTES": np.array([["é", "", "abc"]], dtype=object)}
# BF16 is left out: newer clients want a numpy extension for it. FP16 as JSON is what the client refuses to send.
SENT = [(datatype, binary) for datatype in VALUES for binary in (True, False) if binary or datatype != "FP16"]


@pytest.mark.parametrize(("datatype", "binary_in"), SENT)
@pytest.mark.parametrize("binary_out", [True, False])
def test_round_trip(datatype, binary_in, binary_out, make_signature, infer):
    signature = make_signature(("X", datatype, [3]), outputs=(("X", datatype, [3]),), max_batch_size=4)
    tensor = http.InferInput("X", [1, 3], datatype).set_data_from_numpy(VALUES[datatype], binary_data=binary_in)
    wanted = http.InferRequestedOutput("X", binary_data=binary_out)
    body, json_size = client.generate_request_body([tensor], outputs=[wanted], request_id="7", timeout=9)
    parts = (body, signature) if json_size is None else (body[:json_size], signature, body[json_size:])
    plan = infer(*parts)
    (found,) = plan.request.inputs
    assert (plan.request.id, plan.request.timeout_us, plan.request.batch_size) == ("7", 9, 1)
    answer = InferenceResponse("m", "1", "7", [OutputTensor("X", datatype, found.shape, found.data)])
    encoded = encode_response(answer, plan.output_format)
    reply = b"".join([encoded.header_json, *encoded.chunks])
    assert len(reply) == encoded.body_bytes
    result = client.parse_response_body(reply, header_length=encoded.json_length)
    assert result.get_response()["id"] == "7"
    back = result.as_numpy("X")
    if datatype == "BYTES" and binary_out:
        back = np.array([item.decode() for item in back.ravel()], dtype=object).reshape(back.shape)
    assert back.shape == (1, 3)
    assert (back == VALUES[datatype]).all()


def test_without_outputs_everything_is_asked_for_as_binary(make_signature, infer):
    signature = make_signature(("X", "FP32", [3]))
    tensor = http.InferInput("X", [3], "FP32").set_data_from_numpy(np.zeros(3, np.float32))
    body, json_size = client.generate_request_body([tensor], sequence_id=5, sequence_start=True, parameters={"k": 1})
    plan = infer(body[:json_size], signature, body[json_size:])
    assert plan.output_format.is_binary("anything")
    assert (plan.request.correlation_id, plan.request.flags, plan.request.parameters) == (5, 1, {"k": 1})
