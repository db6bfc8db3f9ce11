"""Files for ``generate``: parts of a form, as browsers and ``curl -F`` send it, and base64 in JSON."""

import base64
import json

import pytest

from tests.support.connection import connected
from tests.support.repositories import tensors, write_model
from tests.support.served import served

TELLS = """
import hashlib
import json


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            told = {}
            for tensor in request.inputs():
                array = tensor.as_numpy()
                flat = array.ravel().tolist()
                told[tensor.name()] = [list(array.shape), [
                    each if not isinstance(each, bytes) else each.decode("latin-1") if len(each) < 100
                    else [len(each), hashlib.sha256(each).hexdigest()] for each in flat]]
            told = {"inputs": told, "parameters": json.loads(request.parameters()), "id": request.request_id()}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("seen", np.array([json.dumps(told)], object))]))
        return answers
"""
CONFIG = f"""
backend: "python"
input [ {tensors(PICTURE=("TYPE_STRING", [1]))} ]
input {{ name: "SIZE" data_type: TYPE_INT32 dims: [ -1 ] optional: true }}
input {{ name: "FLAG" data_type: TYPE_BOOL dims: 1 optional: true }}
output [ {tensors(seen=("TYPE_STRING", [1]))} ]
"""
BATCHED = f"""
backend: "python"
max_batch_size: 1000
input [ {tensors(PICTURE=("TYPE_STRING", [1]))} ]
output [ {tensors(seen=("TYPE_STRING", [1]))} ]
"""
ANY_BYTES = bytes(range(256))
JSON = b"application/json"
BOUNDARY = b"----formboundary7MA4YWxkTrZu0gW"
FORM = b"multipart/form-data; boundary=" + BOUNDARY


@served()
def server(repository):
    write_model(repository, "photo", TELLS, CONFIG)
    write_model(repository, "photos", TELLS, BATCHED)


def part(name, data, more=b"", headers=b""):
    name = name if isinstance(name, bytes) else name.encode()
    return b'Content-Disposition: form-data; name="%b"%b\r\n%b\r\n%b' % (name, more, headers, data)


def file(name, data):
    return part(name, data, b'; filename="cat.jpg"', b"Content-Type: image/jpeg\r\n")


def form(*parts, boundary=BOUNDARY):
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, each) for each in parts) + b"--%b--\r\n" % boundary


def send(server, body, model="photo", route="generate", content_type=FORM):
    return server.request("POST", f"/v2/models/{model}/{route}", body, headers={"Content-Type": content_type.decode()})


def seen(reply):
    assert reply.status == 200, reply.body
    return json.loads(reply.json["seen"])


def test_parts_become_inputs_and_parameters(server):
    body = form(
        file("PICTURE", ANY_BYTES[:90]),
        part("SIZE", b" [224, 336] "),
        part("FLAG", b"true"),
        part("id", b"17"),
        part("top_k", b"4"),
        part("scale", b"-0.5"),
        part("quick", b"false"),
        part("style", "plain, größer".encode()),
        part("quoted", b'"5"'),
        part("parameters", b'{"text": "5"}', headers=b"Content-Type: application/json\r\n"),
    )
    assert seen(send(server, body)) == {
        "inputs": {
            "PICTURE": [[1], [ANY_BYTES[:90].decode("latin-1")]],
            "SIZE": [[2], [224, 336]],
            "FLAG": [[1], [True]],
        },
        "parameters": {
            "id": "17", "top_k": 4, "scale": -0.5, "quick": False, "style": "plain, größer", "quoted": '"5"', "text": "5",
        },
        "id": "17",
    }  # fmt: skip


@pytest.mark.parametrize("piece", [7, 1000, 1 << 20])
def test_a_file_is_what_it_was_in_whichever_pieces_it_comes(server, piece):
    """Even if it is full of what looks like the end of a part."""
    data = (b"\r\n--" + BOUNDARY[:-1] + b"\r\n-" + ANY_BYTES) * (10 if piece < 100 else 3000)
    data += (b"\r\n--" + BOUNDARY + b"X") * 9
    body = form(file("PICTURE", data), part("SIZE", b"1"))
    head = (
        b"POST /v2/models/photo/generate HTTP/1.1\r\nHost: h\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
        % FORM
    )
    with connected(server.port) as connection:
        connection.send(head)
        for begin in range(0, len(body), piece):
            chunk = body[begin : begin + piece]
            connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        connection.send(b"0\r\n\r\n")
        reply = connection.reply()
    same = json.dumps({"PICTURE": {"b64": base64.b64encode(data).decode()}, "SIZE": 1}).encode()
    direct = seen(send(server, same, content_type=JSON))
    assert json.loads(reply.json["seen"]) == direct
    assert direct["inputs"]["PICTURE"][1][0][0] == len(data)


def test_parts_of_one_name_are_elements(server):
    body = form(*(file("PICTURE", b"%d" % number) for number in range(3)))
    assert seen(send(server, body, "photos"))["inputs"]["PICTURE"] == [[3, 1], ["0", "1", "2"]]
    body = form(file("PICTURE", b""), part("SIZE", b"1"), part("SIZE", b"2"))
    assert seen(send(server, body))["inputs"] == {"PICTURE": [[1], [""]], "SIZE": [[2], [1, 2]]}


def test_a_form_is_streamed_to(server):
    reply = send(server, form(file("PICTURE", b"x")), route="generate_stream")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.body.startswith(b"data: {")
    assert (
        send(server, form(part("PICTURE", b"x")), route="generate", content_type=FORM.replace(b"m", b"M", 1)).status
        == 200
    )


def test_a_text_in_json_stays_a_text(server):
    """Only an object means base64, whatever a text looks like."""
    for value in ("eA==", '{"b64": "eA=="}', "b64"):
        sent = json.dumps({"PICTURE": value}).encode()
        assert seen(send(server, sent, content_type=b"application/json"))["inputs"]["PICTURE"] == [[1], [value]]


@pytest.mark.parametrize(
    ("value", "shape", "elements"),
    [
        ({"b64": "eHk="}, [1, 1], ["xy"]),
        ({"b64": ""}, [1, 1], [""]),
        ([{"b64": "eA=="}, {"b64": "eXk="}], [2, 1], ["x", "yy"]),
        ([[{"b64": "eA=="}], [{"b64": "eXk="}], [{"b64": "/+8="}]], [3, 1], ["x", "yy", "\xff\xef"]),
        ([{"b64": "eA=="}] * 1000, [1000, 1], ["x"] * 1000),
    ],
)
def test_an_object_means_base64(server, value, shape, elements):
    for text in (json.dumps({"PICTURE": value}), json.dumps({"parameters": {"PICTURE": value}}).replace("/", "\\/")):
        found = seen(send(server, text.encode(), "photos", content_type=b"application/json"))
        assert found["inputs"]["PICTURE"] == [shape, elements]


ONE = file("PICTURE", b"x")
NO_BASE64 = "input 'PICTURE' is no base64 (RFC 4648, section 4)"
WAYS = (
    ". generate takes a JSON object whose members are the model's inputs, bytes as "
    '{"PICTURE": {"b64": "..."}}, or a form: curl -F PICTURE=@FILE'
)
URL_ENCODED = b"application/x-www-form-urlencoded"
REFUSED = {
    "no boundary": (form(ONE), b"multipart/form-data", 400, "the Content-Type of the form has no boundary: leave this header"),
    "long boundary": (form(ONE), FORM + b"a" * 300, 400, "the form cannot be read: Boundary length"),
    "other boundary": (form(ONE, boundary=b"other"), FORM, 400, "the form cannot be read: "),
    "empty": (b"", FORM, 400, "the form cannot be read: it ends before its last boundary"),
    "cut off": (form(ONE)[:-9], FORM, 400, "the form cannot be read: it ends before its last boundary"),
    "no parts": (form(), FORM, 400, "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 0"),
    "no file chosen": (
        form(part("PICTURE", b"", b'; filename=""')),
        FORM,
        400,
        "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 0",
    ),
    "misspelt": (form(file("Picture", b"x")), FORM, 400, "[request id: <id_unknown>] expected number of inputs between 1 and 3"),
    "file as parameter": (
        form(file("Picture", b"\xff")),
        FORM,
        400,
        "part 'Picture' of the form is no text, and only inputs of BYTES take others. There is no input 'Picture', did you "
        "mean 'PICTURE'?",
    ),
    "no name": (form(b"\r\n\r\nx"), FORM, 400, "the form cannot be read: "),
    "nameless": (form(part("a", b"x").replace(b"; name", b"; nam")), FORM, 400, "the form cannot be read: a part has no name"),
    "attachment": (form(ONE.replace(b"form-data", b"attachment")), FORM, 400, "the form cannot be read: a part has no name"),
    "two names": (
        form(part("a", b"x", headers=b"content-disposition: form-data; name=b\r\n")),
        FORM,
        400,
        "the form cannot be read: a part has several headers content-disposition",
    ),
    "no UTF-8": (form(part(b"\xff", b"x")), FORM, 400, "the form cannot be read: the name of a part is not UTF-8"),
    "encoded": (
        form(part("PICTURE", b"eA==", headers=b"Content-Transfer-Encoding: base64\r\n")),
        FORM,
        400,
        "the form cannot be read: part 'PICTURE' is encoded as base64: send its bytes as they are",
    ),
    "long name": (form(part("a" * 5000, b"x")), FORM, 400, "the form cannot be read: Maximum header size exceeded. Let the client write it: "),
    "many headers": (form(part("a", b"x", headers=b"a: b\r\n" * 9)), FORM, 400, "the form cannot be read: "),
    "many parts": (form(*[part("a", b"")] * 1025), FORM, 400, "the form has more than 1024 parts"),
    "large values": (form(ONE, part("SIZE", b" " * 1_100_000)), FORM, 400, "the form has 1100000 bytes for parameters"),
    "large": (form(file("PICTURE", bytes(17_000_000))), FORM, 400, "the body exceeds 16777216 bytes"),
    "not a number": (
        form(ONE, part("SIZE", b"224px")),
        FORM,
        400,
        "part 'SIZE' of the form is no JSON: input 'SIZE' takes INT32, such as 1 or [1, 2]",
    ),
    "more than a number": (form(ONE, part("SIZE", b'1, "quick": true')), FORM, 400, "part 'SIZE' of the form is no JSON"),
    "twice": (form(ONE, part("a", b"1"), part("a", b"2")), FORM, 400, "input 'a' already exists in request"),
    "twice in parameters": (
        form(ONE, part("parameters", b'{"PICTURE": "y"}')),
        FORM,
        400,
        "input 'PICTURE' already exists in request",
    ),
    "parameters no JSON": (form(ONE, part("parameters", b"x")), FORM, 400, "part 'parameters' of the form is no JSON object"),
    "parameters no object": (form(ONE, part("parameters", b"3")), FORM, 500, "Expected JSON object for keyword: 'parameters'"),
    "two pictures": (form(ONE, ONE), FORM, 400, "The schema can not convert input 'PICTURE' to tensor with proper shape"),
    "a file": (b"\x89PNG\r\n" + ANY_BYTES * 8000, b"image/png", 500, "failed to parse the request JSON buffer: Invalid value. at 0"),
    "nothing": (b"", JSON, 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    "another file": (b"GIF89a" + ANY_BYTES * 8000, URL_ENCODED, 500, "failed to parse the request JSON buffer: Invalid value."),
    "a form without its type": (form(ONE), URL_ENCODED, 500, "failed to parse the request JSON buffer: Invalid value."),
    "base64 alone": (b"eA==", JSON, 500, "failed to parse the request JSON buffer: Invalid value."),
    "line breaks": (b'{"PICTURE": {"b64": "eA==\\n"}}', JSON, 400, NO_BASE64),
    "data URL": (b'{"PICTURE": {"b64": "data:image/png;base64,eA=="}}', JSON, 400, NO_BASE64),
    "half": (b'{"PICTURE": {"b64": "eA"}}', JSON, 400, NO_BASE64),
    "no ASCII": ('{"PICTURE": {"b64": "ü"}}'.encode(), JSON, 400, NO_BASE64),
    "end within": (b'{"PICTURE": {"b64": "%b"}}' % (b"A" * 262142 + b"==eA=="), JSON, 400, NO_BASE64),
    "other object": (b'{"PICTURE": {"base64": "eA=="}}', JSON, 400, "input 'PICTURE' mixes objects with others"),
    "more in it": (b'{"PICTURE": {"b64": "eA==", "type": "png"}}', JSON, 400, "input 'PICTURE' mixes objects with others"),
    "number in it": (b'{"PICTURE": {"b64": 5}}', JSON, 400, "input 'PICTURE' mixes objects with others"),
    "mixed": (b'{"PICTURE": [{"b64": "eA=="}, "x"]}', JSON, 400, "input 'PICTURE' mixes objects with others"),
    "object for a number": (b'{"PICTURE": "x", "SIZE": {"b64": "eA=="}}', JSON, 500, "Unable to parse 'data': attempt to access"),
    "too many": (
        b'{"PICTURE": [%b]}' % b",".join([b'{"b64": "eA=="}'] * 1025),
        JSON,
        400,
        "the body has too much beside its texts and its inputs' lists: at most 1024 members",
    ),
    "broken": (b'{"PICTURE": [{"b64": "eA=="}, {]}', JSON, 500, "failed to parse the request JSON buffer: "),
}  # fmt: skip


@pytest.mark.parametrize(("body", "content_type", "status", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(server, body, content_type, status, text):
    reply = send(server, body, content_type=content_type)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert reply.error.startswith(text)
    if text.startswith("failed to parse") and not body.startswith(b"{"):
        assert reply.error.endswith(WAYS)
    assert seen(send(server, form(ONE)))["inputs"]["PICTURE"] == [[1], ["x"]]
