"""Answers of unusual size or content, and bursts: every request gets its own answer, and the model lives on."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.connection import connected
from tests.support.gates import GATE, Gate
from tests.support.inference import answer_of, infer, infer_message
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import identity_config, write_model
from tests.support.served import served

PREFIX = "Failed to process the request(s) for model 'laboratory_0_0', message: "
SLOW_NOW_AND_THEN = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0]:
            pass_gate(self.directory, "slow")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
)


@served(all_survive=True)
def server(repository):
    write_laboratory(repository)
    write_model(repository, "now_and_then", SLOW_NOW_AND_THEN, identity_config())


@pytest.fixture(scope="module")
def lab(server):
    return laboratory(server)


@pytest.mark.parametrize("size", [1_000_000, 1_048_576])
def test_long_error_texts_arrive_whole(lab, size):
    answer = lab(f"return [pb_utils.InferenceResponse(error=pb_utils.TritonError('ä' * {size}))]")
    assert (answer.status, answer.error) == (500, "ä" * size)


def test_long_exception_texts_arrive_whole(lab):
    answer = lab("raise ValueError('x' * 1_000_000)")
    assert answer.status == 500
    assert answer.error.startswith(PREFIX + "ValueError: " + "x" * 1_000_000 + "\n\nAt:\n  <laboratory>(2): run\n")


@pytest.mark.parametrize(
    "statement",
    [
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('x' * 30_000_000))]",
        "raise ValueError('x' * 30_000_000)",
    ],
)
def test_endless_error_texts_are_cut(lab, statement):
    answer = lab(statement)
    assert answer.status == 500
    assert 1_000_000 < len(answer.error) < 1_100_000
    assert answer.error.endswith(" more characters)")


def test_response_parameters_have_a_limit(lab):
    code = "return [pb_utils.InferenceResponse(parameters={{'text': 'x' * {}}})]"
    assert lab(code.format(100_000)).document["parameters"]["text"] == "x" * 100_000
    answer = lab(code.format(30_000_000))
    assert answer.status == 500
    assert answer.error.startswith(PREFIX + "response parameters of 30000004 characters are too long")


def test_endless_lines_of_the_log_are_cut(server, lab):
    assert lab("pb_utils.Logger.log_info('endless ' * 3_000_000)\nreturn out(OUT=np.ones(1))").status == 200
    server.wait_for(r"endless \.\.\. \(\d+ more characters\)\"")


def test_very_many_outputs(lab):
    """Small tensors travel inside the message, but not without end."""
    answer = lab(
        """
        outputs = [pb_utils.Tensor("OUT", np.full(2000, number, np.float32)) for number in range(9_000)]
        return [pb_utils.InferenceResponse(outputs)]
        """
    )
    assert answer.status == 200
    assert len(answer.document["outputs"]) == 9_000
    assert (answer["OUT"] == 8_999).all()  # outputs of one name: the last one is what this client keeps


def test_very_long_ids_and_parameters_of_requests(lab):
    text = "x" * 1_000_000  # almost all that a request may have beside its tensors
    answer = lab("return out(OUT=text(len(request.request_id())))", _id=text)
    assert answer["OUT"].tolist() == [b"1000000"]
    assert answer.document["id"] == text
    answer = lab("return out(OUT=text(len(json.loads(request.parameters())['text'])))", _parameters={"text": text})
    assert answer["OUT"].tolist() == [b"1000000"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("raise ValueError('\\udc80 \\ud800')", "ValueError: \\udc80 \\ud800\n\nAt:\n"),
        ("raise ValueError(b'\\xff'.decode(errors='surrogateescape'))", "ValueError: \\udcff\n\nAt:\n"),
        ("raise ValueError('a\\0b\\r\\n\"c\"')", 'ValueError: a\0b\r\n"c"\n\nAt:\n'),
        ("raise ValueError", "ValueError: \n\nAt:\n"),
        ("raise type('Ä', (Exception,), {})('ö')", "Ä: ö\n\nAt:\n"),
        (
            "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Mute",
            "Mute: <no message: its __str__ raised RuntimeError>\n\nAt:\n",
        ),
    ],
)
def test_odd_exceptions(lab, statement, expected):
    answer = lab(statement)
    assert answer.status == 500
    assert answer.error.startswith(PREFIX + expected)


def test_surrogates_in_an_error_response(lab):
    answer = lab("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('a \\udfff b'))]")
    assert (answer.status, answer.error) == (500, "a \\udfff b")


@pytest.mark.parametrize(
    "expression",
    [
        "out(OUT=np.array(['\\ud800'], object))",
        "[pb_utils.InferenceResponse([pb_utils.Tensor('\\ud800', np.ones(1))])]",
        "[pb_utils.InferenceResponse(parameters={'\\ud800': 1})]",
        "[pb_utils.InferenceResponse(parameters={'key': '\\ud800'})]",
    ],
)
def test_surrogates_elsewhere_are_refused_where_they_come_from(lab, expression):
    answer = lab(f"return {expression}")
    assert answer.status == 500
    assert "surrogates" in answer.error
    assert "\n  <laboratory>(2): run\n" in answer.error


@pytest.mark.one_process  # clients of two front ends overtake each other
def test_a_slow_request_in_a_burst_holds_up_none_before_it(server):
    """Fast requests are sent to the model several at a time; their answers do not wait for a slow one among them."""
    fast = np.zeros(1, np.float32)
    for _ in range(100):  # the model becomes known as a fast one
        infer(server, "now_and_then", {"IN": fast})
    values = [0.0] * 10 + [1.0] + [0.0] * 10
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in values]
        messages = [infer_message("now_and_then", {"IN": np.array([value], np.float32)}) for value in values]
        for connection, message in zip(connections, messages, strict=True):
            connection.send(message)
        for number, (connection, value) in enumerate(zip(connections, values, strict=True)):
            if number == 10:
                Gate(server.repository / "now_and_then", "slow").open()
            assert answer_of(connection.reply())["OUT"].tolist() == [value]


def test_a_burst_of_failures_and_results_is_not_mixed_up(server):
    code = "return out(OUT=text('{n}')) if {n} % 3 else [][{n}]"
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(8)]
        for number in range(64):
            message = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code.format(n=number)]}
            body = json.dumps({"inputs": [message], "id": str(number)}).encode()
            head = f"POST /v2/models/laboratory/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connections[number % 8].send(head.encode() + body)
        for number in range(64):
            reply = connections[number % 8].reply()
            if number % 3:
                assert (reply.json["id"], reply.json["outputs"][0]["data"]) == (str(number), [str(number)])
            else:
                assert reply.status == 500
                assert "IndexError: list index out of range" in reply.error
