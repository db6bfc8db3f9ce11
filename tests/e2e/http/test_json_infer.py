"""Infer with JSON tensors: every datatype there and back, the dialect's quirks, ids, parameters, choice of outputs."""

import json

import pytest


def tensor(name, datatype, shape, data):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def echo(server, datatype, data, shape=None):
    """The tensor that comes back from the model that answers what it is given."""
    shape = [len(data)] if shape is None else shape
    reply = server.infer("types", {"inputs": [tensor(datatype, datatype, shape, data)]})
    assert reply.status == 200, reply.body
    (output,) = reply.json["outputs"]
    assert output | {"data": None} == tensor(datatype, datatype, shape, None)
    return output["data"]


def echo_text(server, datatype, text, count):
    """The text of the ``data`` member that comes back for the text of one that was sent."""
    body = f'{{"inputs":[{{"name":"{datatype}","datatype":"{datatype}","shape":[{count}],"data":{text}}}]}}'
    reply = server.infer("types", body.encode())
    assert reply.status == 200, reply.body
    return reply.body.decode().partition('"data":')[2].removesuffix("}]}")


def seen_by(reply):
    """What the probe model saw of its request."""
    assert reply.status == 200, reply.body
    return json.loads(next(output for output in reply.json["outputs"] if output["name"] == "SEEN")["data"][0])


VALUES = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [0.5, -65504.0],
    "BF16": [1.5, -0.0078125],
    "FP32": [0.5, -3.4028234663852886e38],
    "FP64": [0.1, -1.7976931348623157e308],
    "BYTES": ["", 'ünïcödé "quoted" \u0000 \U0001f600'],
}


@pytest.mark.spec("srv-H07")
@pytest.mark.parametrize(("datatype", "values"), VALUES.items(), ids=VALUES)
def test_every_datatype_round_trips(server, datatype, values):
    assert echo(server, datatype, values) == values


@pytest.mark.spec("srv-H07")
@pytest.mark.parametrize("datatype", VALUES)
def test_many_elements_and_none(server, datatype):
    values = VALUES[datatype] * 100
    assert echo(server, datatype, values) == values
    assert echo(server, datatype, []) == []


@pytest.mark.spec("srv-H07", "srv-H08")
@pytest.mark.parametrize(
    "data",
    [
        [1, 2, 3, 4, 5, 6],
        [[1, 2, 3], [4, 5, 6]],
        [[[1], [2]], [[3], [4]], [[5], [6]]],
        [[1], [2, 3], [4, 5, 6]],
        [[[[[[[[[[1, 2, 3, 4, 5, 6]]]]]]]]]],
    ],
)
def test_nesting_is_flattened_whatever_the_shape_says(server, data):
    reply = server.infer("raw_plane", {"inputs": [tensor("IN", "FP32", [3, 2], data)]})
    assert reply.json["outputs"] == [tensor("OUT", "FP32", [3, 2], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]


@pytest.mark.spec("srv-H07")
def test_all_datatypes_in_one_request(server):
    inputs = [tensor(datatype, datatype, [len(values)], values) for datatype, values in VALUES.items()]
    reply = server.infer("types", {"inputs": inputs})
    assert reply.json["outputs"] == inputs


@pytest.mark.spec("srv-H08")
def test_fp32_is_printed_as_the_double_of_its_value(server):
    assert echo_text(server, "FP32", "[0.1,1,1e3]", 3) == "[0.10000000149011612,1.0,1000.0]"
    assert echo_text(server, "FP64", "[0.1]", 1) == "[0.1]"


@pytest.mark.spec("srv-H08")
@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_nan_and_infinities(server, datatype):
    found = echo_text(server, datatype, "[NaN,Inf,Infinity,-Inf,-Infinity,0.5]", 6)
    assert found.replace(" ", "") == "[NaN,Infinity,Infinity,-Infinity,-Infinity,0.5]"


@pytest.mark.spec("srv-H08")
@pytest.mark.parametrize(
    ("datatype", "sent", "found"),
    [
        ("INT8", [128, 300, -129], [-128, 44, 127]),
        ("UINT8", [256, 511], [0, 255]),
        ("INT32", [2**31, 2**40 + 5], [-(2**31), 5]),
        ("UINT16", [2**16 + 7], [7]),
    ],
)
def test_integers_are_cut_to_their_width(server, datatype, sent, found):
    assert echo(server, datatype, sent) == found


@pytest.mark.spec("srv-H08")
def test_large_doubles_become_infinite_in_fp32(server):
    assert echo_text(server, "FP32", "[1e300,-1e300]", 2).replace(" ", "") == "[Infinity,-Infinity]"


@pytest.mark.spec("srv-H08")
def test_bytes_that_are_no_text_need_binary_output(server, ask, snapshot):
    command = json.dumps({"blob": "ff00fe"})
    reply = ask(command)
    assert reply.status == 400
    assert reply.error == snapshot
    binary = ask(command, outputs=[{"name": "BLOB", "parameters": {"binary_data": True}}])
    assert binary.status == 200
    assert binary.body.endswith(b"\3\0\0\0\xff\0\xfe")


@pytest.mark.spec("srv-H08")
def test_unknown_members_are_ignored(server):
    document = {
        "model_name": "other",
        "model_version": "9",
        "comment": {"deep": [1, 2]},
        "inputs": [tensor("IN", "FP32", [1], [1]) | {"unit": "m", "parameters": {"scale": [1]}}],
        "outputs": [{"name": "OUT", "unit": None, "parameters": {"x": {}}}],
    }
    reply = server.infer("identity", document)
    assert reply.status == 200
    assert (reply.json["model_name"], reply.json["model_version"]) == ("identity", "1")


# --- versions and outputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "version"), [("", "3"), ("/versions/1", "1"), ("/versions/3", "3")])
def test_version_that_answers(server, path, version):
    reply = server.infer("versions" + path, {"inputs": [tensor("IN", "FP32", [1], [1])]})
    assert reply.json["model_version"] == version


def add_sub(**members):
    pair = [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4], [1, 1, 1, 1])]
    return {"inputs": pair, **members}


@pytest.mark.spec("srv-H09")
def test_no_outputs_named_means_all(server):
    reply = server.infer("add_sub", add_sub())
    assert [output["name"] for output in reply.json["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert [output["data"] for output in reply.json["outputs"]] == [[2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0]]
    assert server.infer("add_sub", add_sub(outputs=[])).json == reply.json


@pytest.mark.spec("srv-H09")
@pytest.mark.parametrize("names", [["OUTPUT1"], ["OUTPUT0"], ["OUTPUT1", "OUTPUT0"]])
def test_outputs_that_are_named_come_in_the_models_order(server, names):
    reply = server.infer("add_sub", add_sub(outputs=[{"name": name} for name in names]))
    assert [output["name"] for output in reply.json["outputs"]] == sorted(names)


@pytest.mark.spec("srv-H09")
def test_output_that_the_model_does_not_have(server, snapshot):
    reply = server.infer("add_sub", add_sub(outputs=[{"name": "OUTPUT0"}, {"name": "OTHER"}]))
    assert reply.status == 400
    assert reply.error.startswith("unexpected inference output 'OTHER' for model 'add_sub'")
    assert reply.error == snapshot


@pytest.mark.spec("srv-H09")
def test_output_that_the_model_did_not_make_is_left_out(server):
    """Only what the model produced comes back: here it was given one tensor of many to echo."""
    wanted = [{"name": "FP32"}, {"name": "INT8"}]
    reply = server.infer("types", {"inputs": [tensor("FP32", "FP32", [1], [1])], "outputs": wanted})
    assert [output["name"] for output in reply.json["outputs"]] == ["FP32"]


# --- ids and parameters ---------------------------------------------------------------------------------------------


@pytest.mark.spec("srv-H17")
@pytest.mark.parametrize("request_id", ["7", "a b/c", 'ünï"\\\n', "x" * 5000])
def test_id_comes_back(server, ask, request_id):
    reply = ask("{}", id=request_id)
    assert reply.json["id"] == request_id
    assert seen_by(reply)["id"] == request_id


@pytest.mark.spec("srv-H17")
@pytest.mark.parametrize("members", [{}, {"id": ""}])
def test_no_id_stays_no_id(ask, members):
    reply = ask("{}", **members)
    assert "id" not in reply.json
    assert seen_by(reply)["id"] == ""


@pytest.mark.spec("srv-H18")
def test_custom_parameters_reach_the_model(ask):
    parameters = {"text": "ü", "count": -3, "most": 2**63 - 1, "flag": True, "off": False, "ratio": 0.5, "": "empty"}
    assert seen_by(ask("{}", parameters=parameters))["parameters"] == parameters


@pytest.mark.spec("srv-H18")
def test_reserved_parameters_are_no_custom_ones(ask):
    reserved = {
        "sequence_id": 5,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 2,
        "timeout": 1_000_000_000,
        "binary_data_output": False,
    }
    seen = seen_by(ask("{}", parameters=reserved | {"mine": 1}))
    assert seen["parameters"] == {"mine": 1}
    assert (seen["correlation_id"], seen["flags"], seen["timeout"]) == (5, 3, 1_000_000_000)


@pytest.mark.spec("srv-H18")
@pytest.mark.parametrize("name", ["triton_", "triton_enable_empty_final_response"])
def test_parameters_of_the_servers_own_are_refused(ask, name):
    reply = ask("{}", parameters={name: True})
    assert reply.status == 400
    assert reply.error == (
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    )


@pytest.mark.spec("srv-H18")
@pytest.mark.parametrize("value", [[1], [], {"a": 1}, None])
def test_parameters_of_other_types_are_refused(ask, value):
    reply = ask("{}", parameters={"k": value})
    assert reply.status == 400
    assert reply.error == "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."


@pytest.mark.spec("srv-H19")
@pytest.mark.parametrize(
    "parameters", [{"text": "ü", "count": -3, "flag": True, "off": False}, {"big": 2**63 - 1}, {"null": "null"}]
)
def test_response_parameters(ask, parameters):
    reply = ask(json.dumps({"parameters": parameters}))
    assert reply.json["parameters"] == parameters


@pytest.mark.spec("srv-H19")
def test_no_response_parameters_no_member(ask):
    assert "parameters" not in ask("{}").json


# --- error codes ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("pb-E05")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNKNOWN", 400),
        ("INTERNAL", 500),
        ("NOT_FOUND", 404),
        ("INVALID_ARG", 400),
        ("UNAVAILABLE", 503),
        ("UNSUPPORTED", 501),
        ("ALREADY_EXISTS", 400),
        ("CANCELLED", 400),
    ],
)
def test_error_codes_of_models(ask, code, status):
    reply = ask(json.dumps({"error": "no: ünïcödé\nsecond line", "code": code}))
    assert (reply.status, reply.error) == (status, "no: ünïcödé\nsecond line")


@pytest.mark.spec("srv-H10")
def test_model_that_raises(ask):
    reply = ask('{"raise": "the model\'s own words"}')
    assert reply.status == 500
    assert "ValueError: the model's own words" in reply.error
    assert "model.py(" in reply.error
