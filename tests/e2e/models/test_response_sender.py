"""Response senders: their rules as models meet them, and what clients get where sender and return value both answer."""

import json
import threading

import pytest

from tests.support.gates import wait_until
from tests.support.inference import infer, strings
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.streams import DECOUPLED, ONE, function, write_front, write_streams

RULES = '''
import json
import unittest

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESULTS = {}
"""The outcome of each test, by its name."""


def response():
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(["answer"], object))])


class SenderRules(unittest.TestCase):
    """Each test has a request of its own, and answers it unless it says ``self.answer``."""

    request = None
    answer = None

    def setUp(self):
        self.sender = self.request.get_response_sender()
        type(self).answer = None

    def refuses(self, text, *args, **kwargs):
        with self.assertRaises(pb_utils.TritonModelException) as raised:
            self.sender.send(*args, **kwargs)
        self.assertEqual(str(raised.exception), text)

    def test_unsupported_flags(self):
        for flags in (2, 3, 4, 2**32 - 1):
            self.refuses("Unable to send response. Unsupported flag provided.", response(), flags)
            self.refuses("Unable to send response. Unsupported flag provided.", flags=flags)
        self.sender.send(response(), FINAL)

    def test_neither_response_nor_flag(self):
        text = "Inference Response object must be provided when the response flags is set to zero."
        self.refuses(text)
        self.refuses(text, None, 0)
        self.refuses(text, flags=0)
        self.sender.send(response(), FINAL)

    def test_sender_of_a_request_that_the_model_built(self):
        built = pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=[])
        own, self.sender = self.sender, built.get_response_sender()
        text = "Unable to send response. Response sender has no reference to the decoupled state of the model."
        self.refuses(text, response())
        self.refuses(text, response(), FINAL)
        self.refuses(text, flags=FINAL)
        self.assertIs(self.sender.is_cancelled(), False)
        self.assertIs(built.get_response_sender(), self.sender)
        own.send(response(), FINAL)

    def test_second_response(self):
        if DECOUPLED:
            self.sender.send(response())
        else:
            self.sender.send(response())
            text = "Unable to send response. Non-decoupled model cannot send more than one response."
            self.refuses(text, response())
            self.refuses(text, response(), FINAL)
            self.refuses(text, pb_utils.InferenceResponse(error=pb_utils.TritonError("x")), FINAL)
        self.sender.send(flags=FINAL)

    def test_flag_before_any_response(self):
        if DECOUPLED:
            self.sender.send(flags=FINAL)
        else:
            text = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            self.refuses(text, flags=FINAL)
            self.refuses(text, None, FINAL)
            self.sender.send(response())
            self.sender.send(flags=FINAL)

    def test_closed(self):
        self.sender.send(response(), FINAL)
        closed = "Unable to send response. Response sender has been closed."
        self.refuses(closed, flags=FINAL)
        if DECOUPLED:
            self.refuses(closed, response())
            self.refuses(closed, response(), FINAL)
        else:
            # The rule that is checked first says so.
            twice = "Unable to send response. Non-decoupled model cannot send more than one response."
            self.refuses(twice, response())
            self.refuses(twice, response(), FINAL)

    def test_flag_twice(self):
        self.sender.send(response())
        self.sender.send(flags=FINAL)
        self.refuses("Unable to send response. Response sender has been closed.", flags=FINAL)

    def test_what_is_wrong_with_the_call_comes_first(self):
        self.sender.send(response(), FINAL)
        self.refuses("Unable to send response. Unsupported flag provided.", response(), 7)
        self.refuses("Inference Response object must be provided when the response flags is set to zero.")

    def test_types_of_arguments(self):
        for arguments in (["text"], [[response()]], [response(), "1"], [response(), None], [response(), -1], [1, 2, 3]):
            with self.assertRaises(TypeError):
                self.sender.send(*arguments)
        with self.assertRaises(TypeError):
            self.sender.send(result=response())
        self.sender.send(response=response(), flags=1)

    def test_surface(self):
        self.assertIs(self.request.get_response_sender(), self.sender)
        self.assertFalse(hasattr(self.sender, "close"))
        self.assertIs(self.sender.is_cancelled(), False)
        self.assertIs(self.request.is_cancelled(), False)
        with self.assertRaises(TypeError):
            type(self.sender)()
        self.sender.send(response(), FINAL)

    def test_nothing_returned_is_none(self):
        self.assertIsNone(self.sender.send(response()))
        self.assertIsNone(self.sender.send(flags=FINAL))

    def test_a_response_stays_as_it_is(self):
        shared = response()
        self.sender.send(shared, FINAL)
        self.assertEqual(shared.output_tensors()[0].as_numpy().tolist(), ["answer"])


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        name = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        if name == "results":
            document = pb_utils.Tensor("OUT", np.array([json.dumps(RESULTS)], object))
            told = pb_utils.InferenceResponse([document])
            if not DECOUPLED:
                return [told]
            return request.get_response_sender().send(told, FINAL)
        SenderRules.request = request
        result = unittest.TestResult()
        SenderRules(name).run(result)
        problems = [trace for _, trace in result.errors + result.failures]
        RESULTS[name] = "passed" if result.wasSuccessful() else problems[0]
        SenderRules.request = None
        return None
'''
TESTS = (
    "unsupported_flags", "neither_response_nor_flag", "sender_of_a_request_that_the_model_built", "second_response",
    "flag_before_any_response", "closed", "flag_twice", "what_is_wrong_with_the_call_comes_first",
    "types_of_arguments", "surface", "nothing_returned_is_none", "a_response_stays_as_it_is",
)  # fmt: skip
CONFIG = f"""
backend: "python"
input [ {tensors(CODE=("TYPE_STRING", [1]))} ]
output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
{ONE}
"""
NOT_TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."
NOT_EMPTY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
UNANSWERED = "The model returned no response for this request"
DROPPED = "The model dropped this request's response sender"


@served()
def server(repository):
    write_model(repository, "rules", f"DECOUPLED = False\n{RULES}", CONFIG)
    write_model(repository, "decoupled_rules", f"DECOUPLED = True\n{RULES}", f"{CONFIG}\n{DECOUPLED}")
    write_front(repository, count=1)
    write_streams(repository, "single", "")


@pytest.fixture(scope="module")
def results(server):
    """What became of each test inside of the models."""
    for name in TESTS:
        infer(server, "rules", {"CODE": strings(f"test_{name}")})
        call_decoupled(server, f"test_{name}")
    answered_once = json.loads(infer(server, "rules", {"CODE": strings("results")})["OUT"][0])
    return {"rules": answered_once, "decoupled_rules": json.loads(call_decoupled(server, "results")[0]["OUT"][0])}


def call_decoupled(server, name):
    answer = infer(server, "front", {"CODE": strings(name)}, parameters={"target": "decoupled_rules"})
    return json.loads(answer["TOLD"][0])


@pytest.mark.spec("pb-D05")
@pytest.mark.parametrize("model", ["rules", "decoupled_rules"])
@pytest.mark.parametrize("name", TESTS)
def test_rules_in_the_model(results, model, name):
    assert results[model][f"test_{name}"] == "passed"


# Models that answer once: what their client gets, and what the model is told


@pytest.fixture(scope="module")
def single(server):
    """A function that runs code in a model that answers once."""

    def run(code, *, asynchronous=False):
        return infer(server, "single", {"CODE": function(code, asynchronous=asynchronous)})

    return run


def outcome(answer):
    """An answer's numbers, or its error."""
    return answer["OUT"].tolist() if answer.status == 200 else answer.error


BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["def", "async def"])


@pytest.mark.spec("pb-D06")
@BOTH
@pytest.mark.parametrize(
    "code",
    [
        "sender.send(out(1), FINAL)",
        "sender.send(out(1), FINAL)\nreturn [None]",
        "sender.send(out(1))\nsender.send(flags=FINAL)",
        "sender.send(out(1))",
        "sender.send(out(1))\nsender.send(flags=FINAL)\nreturn [None]",
        "in_thread(sender.send, out(1), FINAL).join()",
        "in_thread(sender.send, out(1), FINAL)",
        "in_thread(lambda: (time.sleep(0.05), sender.send(out(1)), sender.send(flags=FINAL)))\nreturn [None]",
        "sender.send(out(1), FINAL)\nreturn [out(2)]",
        "sender.send(out(1))\nreturn [out(2)]",
        "sender.send(out(1))\nreturn [failed('too late')]",
        "sender.send(out(1), FINAL)\nraise ValueError('too late')",
        "sender.send(out(1))\nraise ValueError('too late')",
        "sender.send(out(1), FINAL)\nreturn 'no list'",
        "sender.send(out(1), FINAL)\nreturn []",
        "return [out(1)]",
        "request.get_response_sender()\nreturn [out(1)]",
    ],
)
def test_the_first_answer_is_the_client_s(single, code, asynchronous):
    assert outcome(single(code, asynchronous=asynchronous)) == [1]
    assert outcome(single("return [out(0)]")) == [0]


@pytest.mark.spec("pb-D06")
@BOTH
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("sender.send(failed('by sender'), FINAL)", "by sender"),
        ("sender.send(failed('by sender'))\nsender.send(flags=FINAL)", "by sender"),
        ("sender.send(failed('by sender'))\nreturn [out(2)]", "by sender"),
        ("sender.send(flags=FINAL)\nreturn [out(1)]", NOT_EMPTY),
        ("sender.send(out(1), 9)", "Unable to send response. Unsupported flag provided."),
        ("raise ValueError('before')", "ValueError: before"),
        ("keep = sender\nraise ValueError('before')", "ValueError: before"),
    ],
)
def test_errors_of_senders(single, code, text, asynchronous):
    assert text in outcome(single(code, asynchronous=asynchronous))


@pytest.mark.spec("pb-E09")
@BOTH
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("return None", UNANSWERED),
        ("return [None]", UNANSWERED),
        ("keep = request.get_response_sender()\nreturn None", DROPPED),
        ("keep = request.get_response_sender()\nreturn [None]", DROPPED),
        ("def work(sender): pass\nin_thread(work, request.get_response_sender())", DROPPED),
        ("keep = [sender]\nkeep.append(keep)\nin_thread(lambda: (time.sleep(0.1), gc.collect()))", DROPPED),
    ],
)
def test_a_request_that_nobody_can_answer_any_more(single, code, text, asynchronous):
    answer = single(code, asynchronous=asynchronous)
    assert answer.status == 500
    assert answer.error.startswith(text)


@pytest.mark.spec("pb-E09")
def test_a_sender_that_a_global_keeps(server, single):
    """It is waited for, and answered the moment when the global lets go."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(single('state["kept"] = sender')))
    thread.start()
    wait_until(lambda: outcome(single('return [out("kept" in state)]')) == [1], "the sender is kept")
    assert not answers
    assert outcome(single('del state["kept"]\nreturn [out(0)]')) == [0]
    thread.join(60)
    assert answers[0].error.startswith(DROPPED)


@pytest.mark.spec("pb-D06")
@pytest.mark.parametrize(
    ("send", "text"),
    [
        ("sender.send(out(2))", NOT_TWICE),
        ("sender.send(out(2), FINAL)", NOT_TWICE),
        ("sender.send(flags=FINAL)", "Unable to send response. Response sender has been closed."),
    ],
)
def test_sending_behind_the_return_value(single, send, text):
    """The model's thread is told; its client has the answer that was returned."""
    state = """
        def later():
            try:
                {}
                state["told"] = "nothing"
            except pb_utils.TritonModelException as error:
                state["told"] = str(error)
        state["later"], state["told"] = later, None
        return [out(1)]
    """
    assert outcome(single(state.format(send))) == [1]
    answer = single('state.pop("later")()\nreturn [text(state["told"])]')
    assert answer["TEXT"].tolist() == [text.encode()]


def test_large_and_parametrised_responses_of_senders(single):
    answer = single("sender.send(out(*range(100_000), answer=42), FINAL)")
    assert outcome(answer) == list(range(100_000))
    assert answer.document["parameters"]["answer"] == 42


def test_requested_outputs_of_senders(server):
    code = """
        both = [pb_utils.Tensor("OUT", np.ones(1, np.int32)), pb_utils.Tensor("TEXT", np.array(["t"], object))]
        sender.send(pb_utils.InferenceResponse(both), FINAL)
    """
    answer = infer(server, "single", {"CODE": function(code)}, outputs=[{"name": "TEXT"}])
    assert list(answer.outputs) == ["TEXT"]


def test_many_threads_answer_one_request(single):
    """Exactly one of them can; all others are told."""
    code = """
        results = []
        def work(number):
            try:
                sender.send(out(number), FINAL)
                results.append(number)
            except pb_utils.TritonModelException as error:
                assert "more than one response" in str(error)
        threads = [in_thread(work, number) for number in range(32)]
        for thread in threads:
            thread.join()
        state["winners"] = results
    """
    (number,) = outcome(single(code))
    assert outcome(single('return [out(*state["winners"])]')) == [number]


def test_senders_and_statistics(server, single):
    def successes():
        return server.metrics()['nv_inference_request_success{model="single",version="1"}']

    before = successes()
    single("sender.send(out(1), FINAL)")
    single("in_thread(lambda: (time.sleep(0.02), sender.send(out(1), FINAL)))")
    single("return [out(1)]")
    single("sender.send(failed('x'), FINAL)")
    assert successes() == before + 3
    assert server.metrics()['nv_inference_pending_request_count{model="single",version="1"}'] == 0
