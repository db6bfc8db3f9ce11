"""The binary tensor extension in every combination, small bodies; and raw requests without any JSON."""

import json
import struct

import numpy as np
import pytest

from tests.support.connection import binary_body

FORMATS = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<u2",
}  # fmt: skip


def binary(name, datatype, shape, size):
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def strings(*elements):
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def infer(server, model, document, *blobs, headers=None):
    body, header = binary_body(document, *blobs)
    return server.infer(model, body, header | (headers or {}))


def parts(reply):
    """The JSON part of a reply, and its binary tensors by name; checks that the sizes add up."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/octet-stream"
    cut = int(reply.headers["inference-header-content-length"])
    document, rest = json.loads(reply.body[:cut]), reply.body[cut:]
    blobs = {}
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        assert (size is None) != ("data" not in output)
        if size is not None:
            blobs[output["name"]], rest = rest[:size], rest[size:]
    assert rest == b""
    return document, blobs


@pytest.mark.spec("srv-H12")
@pytest.mark.parametrize("datatype", [*FORMATS, "BYTES"])
@pytest.mark.parametrize("count", [0, 1, 3, 5000])
def test_every_datatype_in_and_out(server, datatype, count):
    if datatype == "BYTES":
        blob = strings(*(b"x" * (index % 7) for index in range(count)))
    else:
        blob = (np.arange(count) % 2).astype(FORMATS[datatype]).tobytes()
    document = {
        "inputs": [binary(datatype, datatype, [count], len(blob))],
        "parameters": {"binary_data_output": True},
    }
    reply = infer(server, "types", document, blob)
    if not count:
        assert reply.headers["content-type"] == "application/json"
        assert reply.json["outputs"] == document["inputs"]
        return
    found, blobs = parts(reply)
    assert found["outputs"] == document["inputs"]
    assert blobs == {datatype: blob}


PAIR = np.array([[1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5]], dtype="<f4")


@pytest.mark.spec("srv-H12")
@pytest.mark.parametrize("binary_in", [(), ("INPUT0",), ("INPUT1",), ("INPUT0", "INPUT1")], ids=str)
@pytest.mark.parametrize("binary_out", [(), ("OUTPUT0",), ("OUTPUT1",), ("OUTPUT0", "OUTPUT1")], ids=str)
def test_json_and_binary_mixed(server, binary_in, binary_out):
    inputs, blobs = [], []
    for name, row in zip(("INPUT0", "INPUT1"), PAIR, strict=True):
        if name in binary_in:
            inputs.append(binary(name, "FP32", [4], 16))
            blobs.append(row.tobytes())
        else:
            inputs.append({"name": name, "datatype": "FP32", "shape": [4], "data": row.tolist()})
    outputs = [{"name": name, "parameters": {"binary_data": name in binary_out}} for name in ("OUTPUT0", "OUTPUT1")]
    reply = infer(server, "add_sub", {"inputs": inputs, "outputs": outputs}, *blobs)
    assert reply.status == 200, reply.body
    found, blobs = parts(reply) if binary_out else (reply.json, {})
    assert set(blobs) == set(binary_out)
    for output, wanted in zip(found["outputs"], (PAIR[0] + PAIR[1], PAIR[0] - PAIR[1]), strict=True):
        got = np.frombuffer(blobs[output["name"]], "<f4") if output["name"] in blobs else output["data"]
        assert list(got) == list(wanted)


@pytest.mark.spec("srv-H12")
def test_zero_size_among_others(server):
    document = {
        "inputs": [binary("INT8", "INT8", [0], 0), binary("FP32", "FP32", [2], 8), binary("BYTES", "BYTES", [0], 0)],
        "parameters": {"binary_data_output": True},
    }
    blob = struct.pack("<2f", 1, 2)
    found, blobs = parts(infer(server, "types", document, blob))
    assert found["outputs"] == document["inputs"]
    assert blobs == {"INT8": b"", "FP32": blob, "BYTES": b""}


@pytest.mark.spec("srv-H12")
@pytest.mark.parametrize(
    ("blob_bytes", "message"),
    [
        (31, "unexpected size for input 'INPUT1', expecting 1 additional bytes for model 'add_sub'"),
        (7, "unexpected size for input 'INPUT0', expecting 9 additional bytes for model 'add_sub'"),
        (33, "unexpected additional input data for model 'add_sub'"),
    ],
)
def test_sizes_that_do_not_fit(server, blob_bytes, message):
    inputs = [binary(name, "FP32", [4], 16) for name in ("INPUT0", "INPUT1")]
    reply = infer(server, "add_sub", {"inputs": inputs}, bytes(blob_bytes))
    assert (reply.status, reply.error) == (400, message)


@pytest.mark.spec("srv-H12")
def test_header_length_of_a_pure_json_request(server):
    """The header may be there although nothing follows the JSON, and white space is part of it."""
    body = b'  {"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1]}]}\r\n '
    assert server.infer("identity", body, {"Inference-Header-Content-Length": str(len(body))}).status == 200
    assert server.infer("identity", body).status == 200


FORM = {"binary": True, "JSON": False, "nothing": None}


@pytest.mark.spec("srv-H13")
@pytest.mark.parametrize("default", FORM)
@pytest.mark.parametrize("first", FORM)
@pytest.mark.parametrize("second", FORM)
def test_default_form_and_overrides(server, default, first, second):
    outputs = []
    for name, form in (("OUTPUT0", first), ("OUTPUT1", second)):
        parameters = {} if FORM[form] is None else {"parameters": {"binary_data": FORM[form]}}
        outputs.append({"name": name, **parameters})
    document = {
        "inputs": [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [4], "data": PAIR[i].tolist()} for i in (0, 1)],
        "outputs": outputs,
    }
    if FORM[default] is not None:
        document["parameters"] = {"binary_data_output": FORM[default]}
    reply = server.infer("add_sub", document)
    # The default is for requests that name no outputs.
    wanted = [bool(FORM[form]) for form in (first, second)]
    found = parts(reply)[0] if any(wanted) else reply.json
    assert ["data" not in output for output in found["outputs"]] == wanted


@pytest.mark.spec("srv-H13")
def test_default_form_without_outputs(server):
    document = {
        "inputs": [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [4], "data": PAIR[i].tolist()} for i in (0, 1)],
        "parameters": {"binary_data_output": True},
    }
    assert set(parts(server.infer("add_sub", document))[1]) == {"OUTPUT0", "OUTPUT1"}
    document["parameters"]["binary_data_output"] = False
    assert server.infer("add_sub", document).headers["content-type"] == "application/json"


# --- raw requests ---------------------------------------------------------------------------------------------------

RAW = {"Inference-Header-Content-Length": "0"}
RID = "[request id: <id_unknown>] "


@pytest.mark.spec("srv-H14")
@pytest.mark.parametrize("rows", [0, 1, 3, 40_000])
def test_raw_request(server, rows):
    """Name, datatype and the one variable dimension come from the configuration, a batch of one is put in front."""
    blob = np.arange(rows * 2, dtype="<i4").tobytes()
    reply = server.infer("raw", blob, RAW)
    found = parts(reply)[0] if rows else reply.json
    assert found["outputs"] == [binary("OUT", "INT32", [1, rows, 2], rows * 8)]
    assert reply.body.endswith(blob)


@pytest.mark.spec("srv-H14")
def test_raw_bytes(server):
    found, blobs = parts(server.infer("raw_text", b"any\0 bytes \xff", RAW))
    assert found["outputs"] == [binary("OUT", "BYTES", [1], 16)]
    assert blobs == {"OUT": strings(b"any\0 bytes \xff")}


@pytest.mark.spec("srv-H14")
def test_empty_body_is_a_raw_request(server):
    for headers in ({}, RAW):
        reply = server.infer("raw", b"", headers)
        assert reply.json["outputs"] == [binary("OUT", "INT32", [1, 0, 2], 0)]
    assert parts(server.infer("raw_text", b""))[1] == {"OUT": strings(b"")}


@pytest.mark.spec("srv-H14", "srv-H10")
@pytest.mark.parametrize("body", [b"", bytes(8)])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("add_sub", "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub' model "
         "configuration"),
        ("raw_plane", "The shape of the raw input 'IN' can not be deduced because there are more than one "
         "variable-sized dimension"),
        ("strings", "For BYTE datatype raw input 'IN', the model must have input shape [1]"),
    ],
)  # fmt: skip
def test_raw_request_that_cannot_be_deduced(server, model, message, body):
    reply = server.infer(model, body, RAW)
    assert (reply.status, reply.error) == (400, RID + message)


@pytest.mark.spec("srv-H14")
@pytest.mark.parametrize(
    ("blob_bytes", "message"),
    [
        (12, "input byte size mismatch for input 'IN' for model 'raw'. Expected 8, got 12"),
        (80_001, "input byte size mismatch for input 'IN' for model 'raw'. Expected 80000, got 80001"),
    ],
)
def test_raw_request_of_the_wrong_size(server, blob_bytes, message):
    reply = server.infer("raw", bytes(blob_bytes), RAW)
    assert (reply.status, reply.error) == (400, RID + message)
