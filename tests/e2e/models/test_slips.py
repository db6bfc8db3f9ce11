"""The usual slips of models' authors: after the exception's own words the client and the log read what to do."""

import re

import pytest

from tests.support.inference import infer, strings
from tests.support.repositories import tensors, write_model
from tests.support.served import served

CONFIG = f"""
backend: "python"
input [ {tensors(SLIP=("TYPE_STRING", [1]), TEXT=("TYPE_STRING", [1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
"""

SLIPS = """
import json
import re

class Slips:
    def pattern(self, request):
        return re.sub("a", "b", self.text(request))

    def split(self, request):
        return self.text(request).split(" ")

    def array_method(self, request):
        return pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().decode()

    def joined(self, request):
        return " ".join([self.text(request)])

    def lookup(self, request):
        return {"a word": 1}[self.text(request)]

    def as_json(self, request):
        return json.dumps({"text": self.text(request)})

    def text_method(self, request):
        return self.text(request).format(1)

    def text_array(self, request):
        return pb_utils.Tensor("OUT", np.array(["word"]))

    def list_array(self, request):
        return pb_utils.Tensor("OUT", ["word"])

    def array_first(self, request):
        return pb_utils.Tensor(np.zeros(1, np.float32), "OUT")

    def no_json(self, request):
        args = {"model_config": "{}"}
        return args["model_config"]["parameters"]

    def relative_file(self, request):
        return open("weights.json")

    def absolute_file(self, request):
        return open("/gone/weights.json")

    def double(self, request):
        raise RuntimeError("mat1 and mat2 must have the same dtype, but got Double and Float")

    def misspelt(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TXT")
        return text.as_numpy()

    def raised(self, request):
        raise pb_utils.TritonError("no")

    def unchecked(self, request):
        answer = self.called().exec()
        return pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()

    def unchecked_list(self, request):
        return self.called().exec().output_tensors()[0]

    def unknown_output(self, request):
        answer = self.called("calm").exec()
        return pb_utils.get_output_tensor_by_name(answer, "OUTT").as_numpy()

    def in_plain_execute(self, request):
        return self.called().async_exec()

    async def not_awaited(self, request):
        return self.called().async_exec().has_error()

    async def awaited(self, request):
        return await self.called().exec()

    def something_else(self, request):
        return [][0]

    def absent_object(self, request):
        return None.as_numpy()

    def text(self, request):
        return pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]

    def called(self, slip="raised"):
        inputs = [pb_utils.Tensor("SLIP", np.array([slip], object)), pb_utils.Tensor("TEXT", np.array(["x"], object))]
        return pb_utils.InferenceRequest(model_name="other", requested_output_names=[], inputs=inputs)

    def calm(self, request):
        return pb_utils.Tensor("OUT", np.zeros(1, np.float32))

    def slip(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "SLIP").as_numpy()[0].decode()
        return getattr(self, name)(request)

class TritonPythonModel(Slips):
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.slip(request)]) for request in requests]
"""

COROUTINES = f"""{SLIPS}
    async def execute(self, requests):
        return [pb_utils.InferenceResponse([await self.slip(request)]) for request in requests]
"""

DECODE = "The elements of a BYTES tensor are bytes: `.decode()` makes a str of one"

CURES = {
    "pattern": f"TypeError: cannot use a string pattern on a bytes-like object. {DECODE}.",
    "split": f"TypeError: a bytes-like object is required, not 'str'. {DECODE}.",
    "array_method": "AttributeError: 'numpy.ndarray' object has no attribute 'decode'. `as_numpy()` is an array of elements: "
    "`array.item().decode()` is the only one of a BYTES tensor as str.",
    "joined": f"TypeError: sequence item 0: expected str instance, bytes found. {DECODE}.",
    "lookup": f"KeyError: b'a word'. {DECODE}, where the keys are str.",
    "as_json": f"TypeError: Object of type bytes is not JSON serializable. {DECODE}.",
    "text_method": f"AttributeError: 'bytes' object has no attribute 'format'. {DECODE}.",
    "text_array": "TritonModelException: NumPy dtype is not supported. Tensor 'OUT' has dtype <U4; use `.astype(object)` for an "
    "array of str.",
    "list_array": "TypeError: Tensor(): incompatible constructor arguments: 'numpy_array' must be a numpy.ndarray, not list. "
    "`np.array([...], np.float32)` makes an array of a list, `np.array([...], object)` one of str.",
    "array_first": "TypeError: Tensor(): incompatible constructor arguments: 'numpy_array' must be a numpy.ndarray, not str. "
    '`pb_utils.Tensor("NAME", array)`: first the name, then a NumPy array.',
    "no_json": "TypeError: string indices must be integers, not 'str'. `args['model_config']` is JSON text: "
    "`json.loads(args['model_config'])` is the configuration.",
    "relative_file": "FileNotFoundError: [Errno 2] No such file or directory: 'weights.json'. "
    "`os.path.join(pb_utils.get_model_dir(), ...)` is a file beside model.py; relative paths begin elsewhere.",
    "absolute_file": "FileNotFoundError: [Errno 2] No such file or directory: '/gone/weights.json'\n\nAt:\n",
    "double": "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float. `.astype(np.float32)` makes an "
    "array of FP32.",
    "misspelt": "AttributeError: 'NoneType' object has no attribute 'as_numpy'. The request has no input 'TXT': its inputs are "
    "'SLIP', 'TEXT'.",
    "raised": "TypeError: exceptions must derive from BaseException. Only exceptions can be raised, and a TritonError is none: "
    "`raise pb_utils.TritonModelException(...)`, or answer with `pb_utils.InferenceResponse(error=pb_utils.TritonError(...))`.",
    "unchecked": "AttributeError: 'NoneType' object has no attribute 'as_numpy'. The called model has failed, which `has_error()` "
    "tells: Failed to process the request(s) for model 'other_0', message: TypeError: exceptions must derive from BaseException.",
    "unchecked_list": "IndexError: list index out of range. The called model has failed, which `has_error()` tells: Failed to",
    "unknown_output": "AttributeError: 'NoneType' object has no attribute 'as_numpy'. The response has no output 'OUTT': its "
    "outputs are 'OUT'.",
    "in_plain_execute": "RuntimeError: no running event loop. `await` and `async_exec()` need a coroutine: write "
    "`async def execute`, or call `exec()`, which waits.",
    "not_awaited": "AttributeError: '_asyncio.Future' object has no attribute 'has_error'. `await` it, in an `async def`.",
    "awaited": "TypeError: object InferenceResponse can't be used in 'await' expression. `exec()` waits itself: leave `await` out, "
    "or call `async_exec()`.",
    "something_else": "IndexError: list index out of range\n\nAt:\n",
    "absent_object": "AttributeError: 'NoneType' object has no attribute 'as_numpy'\n\nAt:\n",
}  # fmt: skip


@served()
def server(repository):
    for name, code in (("plain", SLIPS), ("coroutines", COROUTINES), ("other", SLIPS)):
        write_model(repository, name, code, CONFIG)


@pytest.mark.parametrize("slip", CURES)
def test_the_error_of_a_slip_says_the_cure(server, slip):
    model = "coroutines" if slip in {"not_awaited", "awaited"} else "plain"
    answer = infer(server, model, {"SLIP": strings(slip), "TEXT": strings("a word")})
    begin = f"Failed to process the request(s) for model '{model}_0', message: "
    assert (answer.status, answer.error[: len(begin)]) == (500, begin)
    assert answer.error.removeprefix(begin).startswith(CURES[slip])
    assert "1/model.py(" in answer.error.rpartition("\n\nAt:\n")[2]
    server.wait_for(re.escape(CURES[slip].partition("\n")[0][:120]))
