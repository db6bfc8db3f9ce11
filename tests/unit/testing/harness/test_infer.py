"""Requests and responses of models that answer once; the rules and texts are the server's."""

import json
import re
import threading
import warnings

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pybackend_sdk.error import TritonError
from pybackend_testing import HarnessError, InferenceFailed, NoResponse, OutputWarning, Request
from tests.unit.testing.conftest import configuration, wait_until

OUT = 'return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {})]) for request in requests]'
PREFIX = "Failed to process the request(s) for model 'm_0', message: "
IN = "request.inputs()[0].as_numpy()"


def test_arrays_go_in_and_come_out(execute):
    harness = execute(OUT.format(IN + " * 2"))
    sent = np.array([1.5, 2], np.float32)
    result = harness.infer(IN=sent)
    assert result["OUT"].tolist() == [3.0, 4.0]
    assert result["OUT"].dtype == np.float32
    assert result["OUT"] is result.outputs["OUT"]
    assert (result.error, result.exception, result.parameters) == (None, None, {})
    assert repr(result) == "Result(OUT: FP32 [2])"
    assert harness.infer({"IN": sent})["OUT"].tolist() == [3.0, 4.0]


def test_arrays_are_the_models_own_and_the_tests_own(execute):
    harness = execute(
        f"""
        self.array = {IN}
        assert self.array.flags.writeable
        self.array += 1
        self.sent = np.array([7.0], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.sent)])]
        """
    )
    sent = np.ones(3, np.float32)
    result = harness.infer(IN=sent)
    assert sent.tolist() == [1, 1, 1]
    harness.model.sent[0] = 8
    assert result["OUT"].tolist() == [7.0], "as it was when execute returned"
    result["OUT"][0] = 9
    assert harness.model.sent.tolist() == [8.0]
    assert harness.model.array.tolist() == [2, 2, 2], "kept by the model beyond the request"


def test_large_arrays_stay_valid_after_the_request(execute):
    harness = execute(
        """
        self.array = request.inputs()[0].as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.array)])]
        """
    )
    results = []
    for number in range(3):
        results.append(harness.infer(IN=np.full(1_000_000, number, np.float32))["OUT"])
        kept = harness.model.array
        kept += 1
    assert [(result[0], result.sum()) for result in results] == [(n, n * 1_000_000) for n in range(3)]
    assert kept.sum() == 3_000_000


@pytest.mark.parametrize(("copy", "seen"), [("no", [5.0]), ("yes", [1.0])])
def test_an_edit_in_place_shows_as_in_the_server(execute, copy, seen):
    harness = execute(
        f"""
        {IN}[0] = 5
        return [pb_utils.InferenceResponse([request.inputs()[0]])]
        """,
        configuration({"X": "FP32 -1"}, {"X": "FP32 -1"}),
        parameters={"INPUT_COPY": copy},
    )
    assert harness.infer(X=[1.0])["X"].tolist() == seen


@pytest.mark.parametrize(
    ("datatype", "sent"),
    [
        ("BOOL", np.array([True, False])),
        ("INT8", np.array([-1, 2], np.int8)),
        ("UINT64", np.array([2**63], np.uint64)),
        ("FP16", np.array([0.5], np.float16)),
        ("FP64", np.zeros(0)),
        ("STRING", np.array([b"", "größe", b"\x00\xff"], object)),
        ("STRING", np.array(["ab", "c"])),
        ("STRING", np.array([b"ab"])),
        ("INT32", np.array([1, 2], ">i4")),
    ],
)
def test_every_datatype(execute, datatype, sent):
    harness = execute(OUT.format(IN), configuration(datatype + " -1", datatype + " -1"))
    got = harness.infer(IN=sent)["OUT"]
    expected = [e.encode() if isinstance(e, str) else e for e in sent.tolist()]
    assert got.tolist() == expected
    assert got.dtype == (object if datatype == "STRING" else pb_utils.triton_string_to_numpy("TYPE_" + datatype))


def test_bf16_travels_as_its_bits(execute):
    harness = execute(
        """
        given = request.inputs()[0]
        assert given.triton_dtype().name == "BF16"
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", given)])]
        """,
        configuration("BF16 -1", "BF16 -1"),
    )
    bits = np.array([0x3F80, 0], np.uint16)
    assert harness.infer(IN=bits)["OUT"].tolist() == bits.tolist()
    assert harness.infer(IN=np.zeros(0, np.uint16))["OUT"].shape == (0,)


def test_what_a_request_carries(execute):
    harness = execute(
        """
        self.seen = (
            request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.priority(),
            request.parameters(), request.requested_output_names(), request.is_cancelled(),
        )
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))], parameters={"n": 1})]
        """
    )
    result = harness.infer(
        IN=[1],
        request_id="r1",
        correlation_id="s1",
        flags=3,
        timeout_us=1000,
        priority=2,
        parameters={"text": "x", "on": True, "f": 0.5},
        outputs=["OUT"],
    )
    seen = list(harness.model.seen)
    assert json.loads(seen.pop(5)) == {"text": "x", "on": True, "f": 0.5}
    assert seen == ["r1", "s1", 3, 1000, 2, {"OUT"}, False]
    assert result.parameters == {"n": 1}
    assert "parameters={'n': 1}" in repr(result)
    harness.infer(IN=[1])
    assert harness.model.seen == ("", 0, 0, 0, 0, "{}", {"OUT"}, False)


def test_only_the_outputs_asked_for_come(execute):
    harness = execute(
        """
        return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.ones(1, np.float32)) for n in ("B", "A")])]
        """,
        configuration(outputs={"A": "FP32 1", "B": "FP32 1"}),
    )
    assert list(harness.infer(IN=[1]).outputs) == ["B", "A"]
    result = harness.infer(IN=[1], outputs=["A"])
    assert list(result.outputs) == ["A"]
    with pytest.raises(KeyError, match=r"the response has no output 'B'.* It has \['A'\]"):
        result["B"]


def test_a_reshaped_tensor(execute):
    config = configuration("FP32 1", "FP32 1")
    config["max_batch_size"] = 4
    config["input"][0]["reshape"] = {"shape": []}
    config["output"][0]["reshape"] = {"shape": []}
    harness = execute(
        """
        assert request.inputs()[0].shape() == [2]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])]
        """,
        config,
    )
    assert harness.infer(IN=[[1.0], [2.0]])["OUT"].tolist() == [[1.0], [2.0]]


# --- Batches ---


def test_several_requests_in_one_call(execute):
    harness = execute(
        """
        self.ids = [r.request_id() for r in requests]
        responses = []
        for r in requests:
            if r.request_id() == "bad":
                error = pb_utils.TritonError("not you", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]))
        return responses
        """
    )
    results = harness.execute([{"IN": [1.0]}, Request({"IN": [2.0, 3.0]}, request_id="bad"), Request({"IN": [4.0]})])
    assert harness.model.ids == ["", "bad", ""]
    assert [None if r.error is None else r.error.code().name for r in results] == [None, "INVALID_ARG", None]
    assert results[2]["OUT"].tolist() == [4.0]
    with pytest.raises(HarnessError, match="pass at least one"):
        harness.execute([])


# --- Errors ---


def test_an_error_response(execute):
    harness = execute(
        'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))]'
    )
    result = harness.infer(IN=[1])
    assert (result.error.message(), result.error.code()) == ("no", TritonError.NOT_FOUND)
    assert repr(result) == "Result(error=NOT_FOUND: 'no')"
    for use in (result.raise_for_error, lambda: result["OUT"], lambda: result.outputs):
        with pytest.raises(InferenceFailed, match=r"^no$") as caught:
            use()
        assert caught.value.error is result.error


def test_an_exception_has_the_servers_text_and_is_the_cause(execute):
    harness = execute('raise ValueError("xyz")')
    result = harness.infer(IN=[1])
    assert re.fullmatch(
        re.escape(PREFIX) + r"ValueError: xyz\n\nAt:\n  .*/m/1/model\.py\(6\): execute\n", result.error.message()
    )
    assert result.error.code() is TritonError.INTERNAL
    with pytest.raises(InferenceFailed) as caught:
        result.raise_for_error()
    assert caught.value.__cause__ is result.exception
    assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        ("return []", "Number of InferenceResponse objects do not match the number of InferenceRequest objects."),
        ("return ['x'] * 2", "Expected an 'InferenceResponse' object in the execute function return list, found type"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("raise pb_utils.TritonModelException('no')", "TritonModelException: no"),
        ("pb_utils.Tensor('', np.ones(1))", "TritonModelException: Tensor name cannot be an empty string."),
    ],
)
def test_what_fails_every_request_of_a_call(execute, body, text):
    harness = execute(body)
    for result in harness.execute([{"IN": [1]}, {"IN": [2]}]):
        assert result.error.message().startswith(PREFIX + text)
    assert harness.is_open, "the model lives"


def test_nothing_returned(execute):
    for body in ("return None", "return [None]"):
        harness = execute(body)
        assert harness.infer(IN=[1]).error.message().startswith("The model returned no response for this request:")
        harness.close()


def test_rescheduling_needs_a_configuration(execute):
    harness = execute(
        """
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None]
        """
    )
    assert harness.infer(IN=[1]).error.message().startswith("Request is released with TRITONSERVER_REQUEST_RELEASE_")


def test_a_tensor_whose_bytes_cannot_be_had(execute):
    harness = execute(
        """
        tensor = pb_utils.Tensor("OUT", np.ones(1, np.float32))
        del tensor._data
        return [pb_utils.InferenceResponse([tensor])]
        """
    )
    assert harness.infer(IN=[1]).error.message().startswith(PREFIX + "AttributeError: ")


def test_ctrl_c_and_pytests_own_exceptions_reach_the_test(execute):
    harness = execute("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        harness.infer(IN=[1])
    harness.close()
    harness = execute("import pytest\npytest.fail('inside')")
    with pytest.raises(pytest.fail.Exception, match="inside"):
        harness.infer(IN=[1])


# --- Response senders ---

SENDS = """
def answer(sender, value, final=True):
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.float32))]), flags)
"""


def test_a_sender_may_answer_before_or_after_the_return(execute):
    harness = execute(
        """
        import threading
        sender = request.get_response_sender()
        if request.request_id() == "now":
            answer(sender, 1)
        else:
            threading.Timer(0.05, answer, (sender, 2)).start()
        return None
        """,
        more=SENDS,
    )
    assert harness.infer(IN=[1], request_id="now")["OUT"].tolist() == [1.0]
    assert harness.infer(IN=[1], request_id="later")["OUT"].tolist() == [2.0]


def test_of_two_answers_the_first_stands(execute):
    harness = execute(
        """
        self.sender = request.get_response_sender()
        answer(self.sender, 1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([2], np.float32))])]
        """,
        more=SENDS,
    )
    assert harness.infer(IN=[1])["OUT"].tolist() == [1.0]
    with pytest.raises(pb_utils.TritonModelException, match="cannot send more than one response"):
        harness.model.sender.send(pb_utils.InferenceResponse())


def test_an_exception_after_an_answer_leaves_it(execute):
    harness = execute("answer(request.get_response_sender(), 1)\nraise ValueError", more=SENDS)
    results = harness.execute([{"IN": [1]}, {"IN": [2]}])
    assert results[0]["OUT"].tolist() == [1.0]
    assert results[1].error.message().startswith(PREFIX + "ValueError")


def test_a_dropped_sender_is_told(execute):
    harness = execute("request.get_response_sender()\nreturn None")
    assert harness.infer(IN=[1]).error.message().startswith("The model dropped this request's response sender")


def test_a_sender_that_is_kept_and_forgotten(execute, snapshot):
    harness = execute("self.sender = request.get_response_sender()\nreturn None")
    with pytest.raises(NoResponse) as caught:
        harness.infer(IN=[1], wait_s=0.05)
    assert str(caught.value) == snapshot


# --- async execute ---


ASYNC = f"""
import asyncio, threading
class TritonPythonModel:
    async def execute(self, requests):
        self.thread = threading.current_thread().name
        await asyncio.sleep(0)
        if requests[0].request_id() == "bad":
            raise ValueError("late")
        {OUT.format(IN)}
"""


def test_async_execute_is_awaited(opened):
    harness = opened(ASYNC)
    assert harness.infer(IN=[1.0])["OUT"].tolist() == [1.0]
    assert harness.model.thread == "pybackend-coroutines"
    result = harness.infer(IN=[1.0], request_id="bad")
    assert result.error.message().startswith(PREFIX + "ValueError: late\n\nAt:\n")
    assert isinstance(result.exception, ValueError)


def test_async_executions_overlap_if_the_model_wants_it(opened):
    code = """
    import asyncio
    class TritonPythonModel:
        def initialize(self, args):
            self.inside = 0
            self.most = 0

        async def execute(self, requests):
            self.inside += 1
            self.most = max(self.most, self.inside)
            while requests[0].request_id() == "first" and self.most < 2:
                await asyncio.sleep(0.001)
            self.inside -= 1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))])]
    """
    harness = opened(code, parameters={"ASYNC_EXECUTE_CONCURRENCY": "2"})
    first = harness.stream(IN=[1], request_id="first")
    wait_until(lambda: harness.model.inside == 1)
    assert harness.infer(IN=[1])["OUT"].tolist() == [1.0]
    assert len(first.collect()) == 1
    assert harness.model.most == 2


def test_a_test_may_run_in_an_event_loop(execute):
    import asyncio

    harness = execute(OUT.format(IN))

    async def test():
        return harness.infer(IN=[3.0])["OUT"].tolist()

    assert asyncio.run(test()) == [3.0]


# --- Threads ---


def test_execute_runs_once_at_a_time(execute):
    harness = execute(
        f"""
        assert not self.busy
        self.busy = True
        time.sleep(0.001)
        self.busy = False
        {OUT.format(IN)}
        """,
        more="""
    busy = False
import time
""",
    )
    values = []

    def ask(number):
        values.append(harness.infer(IN=[float(number)])["OUT"].item() == number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert values == [True] * 8


def test_execute_runs_in_the_calling_thread(execute):
    harness = execute(
        f"""
        import threading
        self.thread = threading.current_thread()
        {OUT.format(IN)}
        """
    )
    harness.infer(IN=[1.0])
    assert harness.model.thread is threading.current_thread()


def test_a_busy_model_says_where_it_is(execute):
    harness = execute(
        """
        self.entered = True
        while not self.leave:
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))])]
        """,
        more="    entered = leave = False\nimport time\n",
        wait_s=0.5,
    )
    stream = harness.stream(IN=[1])
    wait_until(lambda: harness.model.entered)
    with pytest.raises(HarnessError, match=r"instance 'm_0' is busy: it is at .*model\.py\(\d+\): execute"):
        harness.infer(IN=[1])
    harness.model.leave = True
    assert len(stream.collect()) == 1


# --- Harnesses that are not strict ---


def test_wrong_outputs_are_warnings_on_request(execute):
    harness = execute(OUT.format("np.ones(2)"), strict=False)
    with pytest.warns(OutputWarning, match="returned output 'OUT' as FP64, but its configuration says FP32"):
        result = harness.infer(IN=[1])
    assert result["OUT"].dtype == np.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OutputWarning):
            harness.infer(IN=[1])
