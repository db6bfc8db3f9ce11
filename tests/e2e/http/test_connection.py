"""What happens on a connection: many requests on one, several at once, bytes that come as they like, and no HTTP at
all."""

import json
import os
import random
import re
import shutil
import struct
import subprocess

import pytest

from tests.support.connection import binary_body, chunked, head, post, post_chunked
from tests.support.gates import wait_until

PATH = "/v2/models/identity/infer"
LIVE = head("GET", "/v2/health/live")


def document(*values, request_id=""):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": values}
    return {"id": request_id, "inputs": [tensor]}


def infer(*values, request_id="", headers=None):
    return post(PATH, json.dumps(document(*values, request_id=request_id)).encode(), headers)


def binary_infer(*values, request_id=""):
    blob = struct.pack(f"<{len(values)}f", *values)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [len(values)], "parameters": {"binary_data_size": len(blob)}}
    body, headers = binary_body({"id": request_id, "inputs": [tensor]}, blob)
    return post(PATH, body, headers)


def values_of(reply):
    assert reply.status == 200, reply.body
    return reply.json["outputs"][0]["data"]


@pytest.fixture
def settle(server):
    """Returns once the server has read what was sent on every connection so far: then bytes arrive apart for sure."""
    return lambda: server.get("/v2/health/live")


# --- one connection, many requests ----------------------------------------------------------------------------------


@pytest.mark.spec("srv-H41")
def test_keep_alive(connect):
    connection = connect()
    for number in range(100):
        connection.send(infer(number))
        assert values_of(connection.reply()) == [number]
        connection.send(head("GET", "/v2/models/identity"))
        assert connection.reply().json["name"] == "identity"
        connection.send(post("/v2/models/unknown/infer", b"{}"))
        assert connection.reply().status == 404
        connection.send(head("GET", "/nothing"))
        assert connection.reply().status == 404


@pytest.mark.spec("srv-H41")
def test_pipelined_requests_are_answered_in_order(connect):
    connection = connect()
    connection.send(b"".join(infer(number, request_id=str(number)) for number in range(50)))
    replies = connection.replies(50)
    assert [reply.json["id"] for reply in replies] == [str(number) for number in range(50)]
    assert [values_of(reply) for reply in replies] == [[number] for number in range(50)]


@pytest.mark.spec("srv-H41")
def test_pipelined_mixture(connect):
    """Infer in all forms, ASGI routes and errors in one segment, each way followed by each other."""
    kinds = {
        "infer": (infer(1), 200),
        "binary": (binary_infer(2), 200),
        "live": (LIVE, 200),
        "metadata": (head("GET", "/v2/models/identity"), 200),
        "unknown model": (post("/v2/models/unknown/infer", b"{}"), 404),
        "bad JSON": (post(PATH, b"{"), 500),
        "unknown path": (post("/nothing", b"with a body"), 404),
        "wrong method": (head("DELETE", "/v2"), 405),
        "no body": (post("/v2/models/raw/infer", b""), 200),
    }
    order = [name for first in kinds for second in kinds for name in (first, second)]
    connection = connect()
    connection.send(b"".join(kinds[name][0] for name in order))
    assert [connection.reply().status for _ in order] == [kinds[name][1] for name in order]


@pytest.mark.spec("srv-H41")
def test_far_more_is_pipelined_than_is_kept(connect):
    """Reading pauses and goes on: a megabyte of requests arrives while the first of them is answered."""
    count = 1500
    connection = connect()
    pieces = [infer(*range(100), request_id=str(number)) if number % 3 else LIVE for number in range(count)]
    data = b"".join(pieces)
    assert len(data) > 500_000
    connection.send(data)
    for number in range(count):
        reply = connection.reply()
        assert reply.status == 200
        assert (reply.json["id"] if number % 3 else "") == (str(number) if number % 3 else "")


@pytest.mark.spec("srv-H41")
def test_requests_behind_a_slow_one_wait(connect, ask, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [json.dumps({"wait_for": str(gate)})]}
    connection = connect()
    slow = post("/v2/models/probe/infer", json.dumps({"id": "slow", "inputs": [command]}).encode())
    connection.send(slow + infer(1, request_id="quick") + LIVE)
    with gate.open("w"):
        pass
    replies = connection.replies(3)
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert [reply.json["id"] for reply in replies[:2]] == ["slow", "quick"]


@pytest.mark.parametrize("how", ["reset", "close"])
def test_request_of_a_client_that_has_gone_is_not_run(server, connect, tmp_path, how):
    """If it still waits for its turn; and those behind it get theirs."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def probe(request_id, **members):
        command = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [json.dumps(members)]}
        return post("/v2/models/patient/infer", json.dumps({"id": request_id, "inputs": [command]}).encode())

    cancelled = 'nv_inference_request_failure{model="patient",reason="CANCELED",version="1"}'
    executed = 'nv_inference_exec_count{model="patient",version="1"}'
    before = server.metrics()
    running, leaving, waiting = connect(), connect(), connect()
    for connection, request_id in ((running, "1"), (leaving, "2"), (waiting, "3")):
        connection.send(probe(request_id, **({"wait_for": str(gate)} if request_id == "1" else {})))
        server.get("/v2/health/live")
    getattr(leaving, how)()
    wait_until(lambda: server.metrics()[cancelled] == before[cancelled] + 1, "the request was never cancelled")
    with gate.open("w"):
        pass
    assert [running.reply().json["id"], waiting.reply().json["id"]] == ["1", "3"]
    assert server.metrics()[executed] == before[executed] + 2


@pytest.mark.parametrize(
    "request_", [infer(1, headers={"Connection": "close"}), head("GET", "/v2", {"Connection": "close"})]
)
def test_connection_close_is_honoured(connect, request_):
    connection = connect()
    connection.send(request_ + LIVE)
    reply = connection.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert connection.at_end()


@pytest.mark.parametrize("request_", [infer(1), LIVE], ids=["infer", "ASGI"])
def test_http_1_0_ends_with_the_answer(connect, request_):
    connection = connect()
    connection.send(request_.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert connection.reply().status == 200
    assert connection.at_end()


KEPT = {"Connection": "Keep-Alive"}
ROUTES = {
    "infer": (post(PATH, json.dumps(document(1)).encode(), KEPT), 200),
    "large infer": (post(PATH, json.dumps(document(*[0.5] * 30_000)).encode(), KEPT), 200),
    "error of infer": (post(PATH, b"{", KEPT), 500),
    "health": (head("GET", "/v2/health/ready", KEPT), 200),
    "metadata": (head("GET", "/v2/models/identity", KEPT), 200),
    "generate": (post("/v2/models/identity/generate", b'{"IN": 1}', KEPT), 200),
    "no route": (head("GET", "/nothing", KEPT), 404),
}


@pytest.mark.spec("srv-H52")
@pytest.mark.parametrize(("request_", "status"), ROUTES.values(), ids=ROUTES)
def test_http_1_0_is_told_that_its_connection_is_kept(connect, request_, status):
    connection = connect()
    for _ in range(4):  # the server knows the head from the second time on
        connection.send(request_.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        reply = connection.reply()
        assert (reply.status, reply.headers["connection"]) == (status, "keep-alive")
    connection.send(request_.replace(b"HTTP/1.1", b"HTTP/1.0", 1).replace(b"Keep-Alive", b"close"))
    assert connection.reply().headers["connection"] == "close"
    assert connection.at_end()


@pytest.mark.spec("srv-H52")
def test_http_1_0_is_told_that_its_connection_ends(connect):
    connection = connect()
    request = post("/v2/models/identity/generate_stream", b'{"IN": 1}', KEPT)
    connection.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    reply = connection.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert connection.at_end()


@pytest.mark.spec("srv-H52")
@pytest.mark.skipif(shutil.which("ab") is None, reason="ApacheBench (apache2-utils) is not installed")
@pytest.mark.parametrize("path", [PATH, "/v2/health/ready"])
def test_apache_bench_keeps_its_connections(server, tmp_path, path):
    body = tmp_path / "body"
    body.write_text(json.dumps(document(1)))
    command = ["ab", "-k", "-n", "50", "-c", "2"]
    if path == PATH:
        command += ["-p", str(body), "-T", "application/json"]
    done = subprocess.run(
        [*command, f"http://{server.url}{path}"], capture_output=True, text=True, timeout=60, check=True
    )
    seen = dict(
        re.findall(r"^(Complete requests|Failed requests|Keep-Alive requests):\s+(\d+)", done.stdout, re.MULTILINE)
    )
    assert seen == {"Complete requests": "50", "Failed requests": "0", "Keep-Alive requests": "50"}


# --- bytes as they come ---------------------------------------------------------------------------------------------

SEQUENCE = (
    infer(1.5, request_id="1")
    + LIVE
    + binary_infer(2.5, request_id="2")
    + post_chunked(PATH, [b'{"id":"3","inputs":[{"name":"IN","datatype":"FP32",', b'"shape":[1],"data":[3.5]}]}'])
)
"""Four requests."""


def check_sequence(replies):
    assert [reply.status for reply in replies] == [200] * 4
    assert [replies[index].json["id"] for index in (0, 2, 3)] == ["1", "2", "3"]
    assert [values_of(replies[index]) for index in (0, 2, 3)] == [[1.5], [2.5], [3.5]]
    assert replies[1].json == {"live": True}


@pytest.mark.spec("srv-H41")
def test_one_byte_at_a_time(connect, settle):
    connection = connect()
    for number, byte in enumerate(SEQUENCE):
        connection.send(bytes([byte]))
        if number % 7 == 0:
            settle()
    check_sequence(connection.replies(4))


@pytest.mark.spec("srv-H41")
@pytest.mark.parametrize("request_", [infer(1.5), head("GET", "/v2"), post_chunked(PATH, [json.dumps(document(2)).encode()])],
                         ids=["infer", "ASGI", "chunked"])  # fmt: skip
def test_split_at_every_place(connect, settle, request_):
    connection = connect()
    for cut in range(1, len(request_)):
        connection.send(request_[:cut])
        settle()
        connection.send(request_[cut:])
        assert connection.reply().status == 200, request_[:cut]


@pytest.mark.spec("srv-H41")
def test_random_pieces(connect, settle):
    randomness = random.Random(7)
    for _ in range(20):
        connection = connect()
        cuts = sorted(randomness.sample(range(1, len(SEQUENCE)), 12))
        for begin, end in zip([0, *cuts], [*cuts, len(SEQUENCE)], strict=True):
            connection.send(SEQUENCE[begin:end])
            settle()
        check_sequence(connection.replies(4))
        connection.close()


def test_empty_lines_before_a_request(connect):
    connection = connect()
    connection.send(b"\r\n" + infer(1) + b"\r\n" + LIVE + b"\r\n\r\n" + infer(2) + b"\r\n\r\n\r\n" + infer(3))
    replies = connection.replies(4)
    assert [values_of(replies[index]) for index in (0, 2, 3)] == [[1.0], [2.0], [3.0]]


def test_names_of_header_fields_have_no_case(connect):
    connection = connect()
    request = binary_infer(4.5)
    connection.send(request.replace(b"Inference-Header-Content-Length", b"INFERENCE-header-CONTENT-length"))
    assert values_of(connection.reply()) == [4.5]
    connection.send(request.replace(b"Content-Length: ", b"content-LENGTH:    "))
    assert values_of(connection.reply()) == [4.5]


# --- chunked bodies -------------------------------------------------------------------------------------------------


@pytest.mark.spec("srv-H16")
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunked_json(connect, size):
    """As ``curl -T -`` sends it."""
    text = json.dumps(document(*range(300), request_id="c")).encode()
    connection = connect()
    for _ in range(3):
        connection.send(post_chunked(PATH, [text[at : at + size] for at in range(0, len(text), size)]))
        reply = connection.reply()
        assert (reply.json["id"], values_of(reply)) == ("c", list(map(float, range(300))))


def test_chunk_extensions_and_trailers(connect):
    text = json.dumps(document(6)).encode()
    body = b"%x;name=value\r\n%b\r\n0\r\nX-Checksum: none\r\n\r\n" % (len(text), text)
    connection = connect()
    for _ in range(2):
        connection.send(head("POST", PATH, {"Transfer-Encoding": "chunked"}) + body)
        assert values_of(connection.reply()) == [6.0]


TRAILERS = [
    "Connection: close",
    "Connection: Upgrade\r\nUpgrade: h2c",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip",
    "Expect: 100-continue",
]


@pytest.mark.parametrize("path", [PATH, "/v2/models/unknown/infer", "/v2"])
@pytest.mark.parametrize("trailer", TRAILERS)
def test_trailers_say_nothing_about_the_connection(connect, trailer, path):
    text = json.dumps(document(6)).encode()
    body = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(text), text, trailer.encode())
    connection = connect()
    connection.send((head("POST", path, {"Transfer-Encoding": "chunked"}) + body) * 2 + infer(3))
    first, second, third = connection.replies(3)
    assert (first.status, first.body) == (second.status, second.body)
    assert values_of(third) == [3.0]


@pytest.mark.parametrize("rest", [b"zz\r\n", b"2\r\nabc", b"0\r\nno field\r\n\r\n"])
def test_malformed_chunk_behind_an_answer_gets_no_second_one(connect, settle, rest):
    """The application answers before the body is complete; what follows cannot be answered again."""
    connection = connect()
    connection.send(head("POST", "/v2", {"Transfer-Encoding": "chunked"}) + b"2\r\nab\r\n")
    assert connection.reply().status == 405
    connection.send(rest)
    assert connection.at_end()


@pytest.mark.parametrize("path", [PATH, "/v2"])
def test_chunks_need_http_1_1(connect, path):
    """RFC 9112, section 6.1: whoever sends that, the framing may be wrong."""
    connection = connect()
    connection.send(
        LIVE + post_chunked(path, [b"{}"], {"Connection": "keep-alive"}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    )
    connection.send(LIVE)
    assert connection.reply().status == 200
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error.startswith("Invalid HTTP request received")
    assert connection.at_end()


ANSWERED_BY_AN_ERROR = {
    "no such path": (head("GET", "/nowhere"), 404),
    "broken JSON": (post(PATH, b"[" * 99 + b" " * 300_000), 500),
}


@pytest.mark.parametrize("malformed", ["chunks in HTTP/1.0", "target"])
@pytest.mark.parametrize("name", ANSWERED_BY_AN_ERROR)
def test_malformed_request_behind_an_error(connect, name, malformed):
    """It is told for itself, although it is read while the error is being handled."""
    request, status = ANSWERED_BY_AN_ERROR[name]
    behind = (
        head("GET", "http://x:99999/")
        if malformed == "target"
        else LIVE.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nTransfer-Encoding: chunked\r\n")
    )
    connection = connect()
    connection.send(request + behind)
    assert connection.reply().status == status
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error.startswith("Invalid HTTP request received")
    assert connection.at_end()


@pytest.mark.parametrize("length", ["0" * 5000 + "2", "2" + " " * 5000])
def test_length_of_thousands_of_characters(connect, length):
    connection = connect()
    connection.send(head("POST", "/v2", {"Content-Length": length}) + b"{}" + infer(1))
    assert connection.reply().status == 405
    assert values_of(connection.reply()) == [1.0]


def test_chunked_body_without_chunks_is_an_empty_one(connect):
    connection = connect()
    connection.send(post_chunked("/v2/models/raw/infer", []))
    assert connection.reply().json["outputs"][0]["shape"] == [1, 0, 2]


def test_chunked_body_on_other_routes(connect):
    connection = connect()
    for _ in range(2):
        connection.send(post_chunked("/v2", [b"something"]))
        assert connection.reply().status == 405


@pytest.mark.parametrize("path", ["/nothing", "/v2", "/v2/models/unknown/infer"])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_large_body_that_nobody_wants(connect, path, in_chunks):
    """The answer may come before the last byte was sent, but the client may also send all before it reads."""
    body = bytes(3_000_000)
    connection = connect()
    for _ in range(2):
        connection.send(post_chunked(path, [body]) if in_chunks else post(path, body))
        reply = connection.reply()
        assert reply.status in {400, 404, 405}
        assert reply.error
    connection.send(infer(1))
    assert values_of(connection.reply()) == [1.0]


@pytest.mark.parametrize("path", [PATH, "/v2/models/unknown/infer", "/v2"])
def test_requests_behind_a_chunked_one(connect, path):
    """In one segment with its last chunk, whoever answers it and whenever."""
    text = json.dumps(document(1)).encode()
    first = post_chunked(path, [text[:9], text[9:]])
    connection = connect()
    connection.send(first + infer(2) + first + first + LIVE + binary_infer(3) + first)
    status = {PATH: 200, "/v2": 405}.get(path, 404)
    replies = connection.replies(7)
    assert [reply.status for reply in replies] == [status, 200, status, status, 200, 200, status]
    assert (values_of(replies[1]), values_of(replies[5])) == ([2.0], [3.0])


@pytest.mark.spec("srv-H16")
def test_too_many_chunks(connect):
    text = json.dumps(document(1)).encode() + b" " * 65_536
    connection = connect()
    connection.send(post_chunked(PATH, [text[:100], *(bytes([byte]) for byte in text[100:65_635])]))
    assert values_of(connection.reply()) == [1.0]
    connection.send(post_chunked(PATH, [bytes([byte]) for byte in text[:65_537]]))
    reply = connection.reply()
    assert (reply.status, reply.error) == (
        400,
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.",
    )
    assert reply.headers["connection"] == "close"


def test_endless_line_between_chunks(connect):
    for line in (b"2;" + b"x" * 20_000, b"0\r\nX-Trailer: " + b"x" * 20_000):
        connection = connect()
        connection.send(head("POST", PATH, {"Transfer-Encoding": "chunked"}) + line)
        reply = connection.reply()
        assert reply.status == 400
        assert "of more than 16384 bytes" in reply.error


# --- Expect ---------------------------------------------------------------------------------------------------------

EXPECTED = {
    "small infer": (PATH, json.dumps(document(1)).encode(), {}, 200),
    "large infer": (PATH, json.dumps(document(1)).encode() + b" " * 200_000, {}, 200),
    "unknown model": ("/v2/models/unknown/infer", b"x" * 200_000, {}, 404),
    "bad header length": (PATH, b"x" * 200_000, {"Inference-Header-Content-Length": "x"}, 400),
    "too large": (PATH, b"x" * (100 << 20), {}, 400),
    "another route": ("/v2", b"x" * 10, {}, 405),
}


@pytest.mark.parametrize("value", ["100-continue", "100-Continue"])
@pytest.mark.parametrize(("path", "body", "headers", "status"), EXPECTED.values(), ids=EXPECTED)
def test_expect_100_continue(connect, path, body, headers, status, value):
    """As curl does it: the head, wait for 100 or for the answer, the body."""
    connection = connect()
    for _ in range(2):
        connection.send(head("POST", path, {"Content-Length": len(body), "Expect": value, **headers}))
        reply = connection.reply()
        if reply.status == 100:
            assert reply.headers == {}
            connection.send(body)
            reply = connection.reply()
            assert (status, reply.status) == (200, 200)
        else:  # the head alone was refused: whoever then does not send the body can only go on elsewhere
            assert reply.status == status
            connection = connect()


def test_expect_100_continue_with_chunks(connect):
    connection = connect()
    connection.send(head("POST", PATH, {"Transfer-Encoding": "chunked", "Expect": "100-continue"}))
    assert connection.reply().status == 100
    connection.send(chunked([json.dumps(document(8)).encode()]))
    assert values_of(connection.reply()) == [8.0]


MOST = 32 << 20
SHORT = {"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 4}}
SHORT_TEXT, SHORT_HEADERS = binary_body({"inputs": [SHORT]})
REFUSED = {
    "by the model's name": ("/v2/models/unknown/infer", b"", {}),
    "by the length of the JSON": (PATH, b"", {}),
    "by the JSON before tensors": (PATH, SHORT_TEXT, SHORT_HEADERS),
}


@pytest.mark.parametrize(("path", "begin", "headers"), REFUSED.values(), ids=REFUSED)
def test_a_large_body_is_refused_as_soon_as_that_is_known(connect, path, begin, headers):
    connection = connect()
    connection.send(head("POST", path, {"Content-Length": 100 << 20, **headers}) + begin)
    reply = connection.reply()  # the rest of the body has not been sent
    assert (reply.status // 100, reply.headers["connection"]) == (4, "close")
    assert connection.at_end()


def test_a_client_that_sends_all_of_a_large_body_first_reads_the_answer(server):
    assert server.request("POST", "/v2/models/unknown/infer", bytes(40 << 20)).status // 100 == 4


def test_a_refused_body_that_is_not_large_does_not_cost_the_connection(connect):
    connection = connect()
    for size in (10, 1 << 20):
        connection.send(post("/v2/models/unknown/infer", bytes(size)) + infer(3))
        assert connection.reply().status // 100 == 4
        assert values_of(connection.reply()) == [3.0]
    connection.send(post_chunked("/v2/models/unknown/infer", [bytes(1 << 20)]) + infer(3))
    assert connection.reply().status // 100 == 4
    assert values_of(connection.reply()) == [3.0]
    connection.send(head("POST", "/v2/models/unknown/infer", {"Transfer-Encoding": "chunked"}))
    connection.send(b"%x\r\n" % (100 << 20) + bytes(MOST + 1))
    assert connection.reply().status // 100 == 4
    assert connection.at_end()


def test_client_that_does_not_wait_for_100(connect):
    connection = connect()
    connection.send(infer(1, headers={"Expect": "100-continue"}) + infer(2))
    assert connection.reply().status == 100
    assert values_of(connection.reply()) == [1.0]
    assert values_of(connection.reply()) == [2.0]


# --- upgrades -------------------------------------------------------------------------------------------------------

WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}


@pytest.mark.parametrize("headers", [WEBSOCKET, H2C], ids=["websocket", "h2c"])
@pytest.mark.parametrize("one_segment", [True, False])
def test_upgrades_are_ignored(connect, headers, one_segment):
    """``curl --http2`` offers an upgrade with its first request, and takes the HTTP/1.1 answer."""
    requests = [head("GET", "/v2/health/live", headers), infer(1, headers=headers), LIVE, infer(2)]
    connection = connect()
    if one_segment:
        connection.send(b"".join(requests))
        replies = connection.replies(4)
    else:
        replies = []
        for request in requests:
            connection.send(request)
            replies.append(connection.reply())
    assert [reply.status for reply in replies] == [200] * 4
    assert (values_of(replies[1]), values_of(replies[3])) == ([1.0], [2.0])


def test_upgrade_of_a_large_and_of_a_chunked_body(connect):
    text = json.dumps(document(5)).encode()
    connection = connect()
    connection.send(post(PATH, text + b" " * 100_000, H2C))
    assert values_of(connection.reply()) == [5.0]
    connection.send(post_chunked(PATH, [text], H2C))
    assert values_of(connection.reply()) == [5.0]
    connection.send(infer(6))
    assert values_of(connection.reply()) == [6.0]


# --- what is too large, and what is no HTTP -------------------------------------------------------------------------

HUGE_HEADS = {
    "one field": head("GET", "/v2", {"X-Long": "x" * 100_000}),
    "many fields": head("GET", "/v2", {f"X-{number}": "x" * 100 for number in range(1000)}),
    "a target": head("GET", "/v2?" + "x" * 100_000),
    "no end": b"GET /v2 HTTP/1.1\r\nX-Long: " + b"x" * 1_000_000,
    "infer": post(PATH, b"{}", {"X-Long": "x" * 100_000}),
}


@pytest.mark.parametrize("pieces", [1, 10])
@pytest.mark.parametrize("data", HUGE_HEADS.values(), ids=HUGE_HEADS)
def test_head_that_is_too_large(connect, settle, data, pieces):
    connection = connect()
    size = -(-len(data) // pieces)
    for begin in range(0, len(data), size):
        try:
            connection.send(data[begin : begin + size])
        except (BrokenPipeError, ConnectionResetError):
            break  # it has made up its mind
        if pieces > 1:
            settle()
    reply = connection.reply()
    assert reply.status == 431
    assert reply.error == "the request's head exceeds 65536 bytes"
    assert reply.headers["connection"] == "close"


def test_head_that_is_just_small_enough(connect):
    connection = connect()
    connection.send(head("GET", "/v2", {"X-Long": "x" * 65_000}))
    assert connection.reply().status == 200
    connection.send(infer(1, headers={"X-Long": "x" * 65_000}))
    assert connection.reply().status == 200


def headless(*lines, version="HTTP/1.1", method="GET", path="/v2"):
    return "\r\n".join([f"{method} {path} {version}", *lines, "", ""]).encode()


AGAINST_RFC_9112 = {
    "no host": (headless(), 400),
    "two hosts": (headless("Host: a", "host: a"), 400),
    "two hosts in HTTP/1.0": (headless("Host: a", "Host: b", version="HTTP/1.0"), 400),
    "host with a path": (headless("Host: a/b"), 400),
    "host with a user": (headless("Host: a@b"), 400),
    "host with letters for a port": (headless("Host: a:b"), 400),
    "HTTP/0.9": (headless("Host: a", version="HTTP/0.9"), 505),
    "HTTP/2.0": (headless("Host: a", version="HTTP/2.0"), 505),
    "gzip, then chunks": (headless("Host: a", "Transfer-Encoding: gzip, chunked", method="POST"), 501),
    "in two fields": (headless("Host: a", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked", method="POST"), 501),
    "chunks twice": (headless("Host: a", "Transfer-Encoding: chunked, chunked", method="POST"), 400),
    "no chunks": (headless("Host: a", "Transfer-Encoding: gzip", method="POST"), 400),
}


@pytest.mark.parametrize("path", ["/v2", PATH])
@pytest.mark.parametrize(("data", "status"), AGAINST_RFC_9112.values(), ids=AGAINST_RFC_9112)
def test_heads_that_servers_could_understand_differently(connect, data, status, path):
    connection = connect()
    connection.send(data.replace(b"/v2", path.encode(), 1) + b"2\r\n{}\r\n0\r\n\r\n")
    reply = connection.reply()
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert reply.error.startswith("Invalid HTTP request received")
    assert connection.at_end()


@pytest.mark.parametrize("target", ["http://x", "http://x%v2", "/v2#", "/v2#/infer"])
def test_targets_that_name_no_path(connect, target):
    connection = connect()
    connection.send(headless("Host: a", path=target))
    reply = connection.reply()
    assert (reply.status, reply.headers["connection"]) == (400, "close")
    assert reply.error.startswith("Invalid HTTP request received: its target ")
    assert connection.at_end()


@pytest.mark.parametrize("host", ["a", "", "a.b:8000", "127.0.0.1:", "[::1]:80", "[fe80::1%25eth0]", " x\t", "a_b"])
def test_hosts(connect, host):
    connection = connect()
    connection.send(headless(f"Host: {host}"))
    assert connection.reply().status == 200


def test_http_1_0_needs_no_host(connect):
    connection = connect()
    connection.send(headless(version="HTTP/1.0"))
    assert connection.reply().status == 200


CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))
GARBAGE = {
    "zeros": bytes(100),
    "text": b"hello there, is this a chat server?\r\n\r\n",
    "TLS": CLIENT_HELLO,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.7": b"GET /v2 HTTP/3.7\r\nHost: x\r\n\r\n",
    "bare LF before the colon": b"GET /v2 HTTP/1.1\r\nHost\n: x\r\n\r\n",
    "space in a field name": b"GET /v2 HTTP/1.1\r\nHo st: x\r\n\r\n",
    "control character": b"GET /v2 HTTP/1.1\r\nHost: \x01\x00\r\n\r\n",
    "length no number": head("POST", PATH, {"Content-Length": "ten"}),
    "length negative": head("POST", PATH, {"Content-Length": "-1"}),
    "length signed": head("POST", PATH, {"Content-Length": "+5"}) + b"12345",
    "length beyond all bounds": head("POST", PATH, {"Content-Length": "9" * 40}),
    "two lengths": head("POST", PATH, {"Content-Length": "2", "content-length": "3"}) + b"{}}",
    "length and chunks": head("POST", PATH, {"Content-Length": "2", "Transfer-Encoding": "chunked"}) + b"{}",
    "chunk size no number": head("POST", PATH, {"Transfer-Encoding": "chunked"}) + b"zz\r\n{}\r\n",
    "chunk size beyond all bounds": head("POST", PATH, {"Transfer-Encoding": "chunked"}) + b"f" * 17 + b"\r\n",
    "chunk too long": head("POST", PATH, {"Transfer-Encoding": "chunked"}) + b"2\r\n{}{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("before", [b"", infer(1)], ids=["at first", "later"])
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage(connect, data, before):
    connection = connect()
    connection.send(before + data)
    if before:
        assert connection.reply().status == 200
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error.startswith("Invalid HTTP request received")
    assert reply.headers["connection"] == "close"
    assert connection.at_end()


def test_random_garbage_harms_nobody(connect, server):
    randomness = random.Random(11)
    for _ in range(50):
        connection = connect()
        connection.send(randomness.randbytes(randomness.randrange(1, 3000)))
        connection.socket.shutdown(1)
        while connection.socket.recv(1 << 16):
            pass
        connection.close()
    # Good requests with one byte changed: an answer or an end, but never silence.
    for _ in range(300):
        data = bytearray(SEQUENCE)
        data[randomness.randrange(len(data))] = randomness.randrange(256)
        connection = connect()
        connection.send(data)
        connection.socket.shutdown(1)
        try:
            while connection.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        connection.close()
    assert server.get("/v2/health/ready").status == 200


def test_connect_and_trace(connect):
    for request in (b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n", head("TRACE", "/v2")):
        connection = connect()
        connection.send(request)
        reply = connection.reply()
        assert reply.status in {400, 404, 405}
        assert reply.error
