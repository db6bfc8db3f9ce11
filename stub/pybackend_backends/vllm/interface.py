"""The inputs and outputs of every model of this backend."""

from pybackend_sdk.backend import Signature, TensorInfo


def _input(name: str, datatype: str, size: int = 1) -> TensorInfo:
    return TensorInfo(name, "TYPE_" + datatype, (size,), name != "text_input")


def _output(name: str, datatype: str) -> TensorInfo:
    return TensorInfo(name, "TYPE_" + datatype, (-1,))


SIGNATURE = Signature(
    [
        _input("text_input", "STRING"),
        _input("image", "STRING", -1),
        _input("stream", "BOOL"),
        _input("sampling_parameters", "STRING"),
        _input("exclude_input_in_output", "BOOL"),
        _input("return_finish_reason", "BOOL"),
        _input("return_cumulative_logprob", "BOOL"),
        _input("return_logprobs", "BOOL"),
        _input("return_num_input_tokens", "BOOL"),
        _input("return_num_output_tokens", "BOOL"),
    ],
    [
        _output("text_output", "STRING"),
        _output("finish_reason", "STRING"),
        _output("cumulative_logprob", "FP32"),
        _output("logprobs", "STRING"),
        _output("num_input_tokens", "UINT32"),
        _output("num_output_tokens", "UINT32"),
    ],
    most_rows=0,
)
"""As of Triton's vLLM backend. Models do not batch: the engine joins requests by itself."""
