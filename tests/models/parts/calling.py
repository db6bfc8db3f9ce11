"""What models have at hand that run code which a test sends, and call other models in it."""

# ruff: noqa: F401  the modules are there for code that tests send

import asyncio
import gc
import json
import os
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import triton_python_backend_utils as pb_utils

state = {}
"""What code keeps from one execution to the next."""


def call(model_name, outputs=(), inputs=None, model_version=-1, **arrays):
    """A request for a model: arrays by the name of the input; what is no array is an option of the request."""
    tensors = [tensor(name, value) for name, value in arrays.items() if isinstance(value, (list, np.ndarray))]
    options = {name: value for name, value in arrays.items() if not isinstance(value, (list, np.ndarray))}
    return pb_utils.InferenceRequest(
        model_name=model_name,
        inputs=tensors if inputs is None else inputs,
        requested_output_names=list(outputs),
        model_version=model_version,
        **options,
    )


def tensor(name, value):
    """Numbers in a list become FP32, texts BYTES."""
    if isinstance(value, list):
        value = np.array(value, object if value and isinstance(value[0], (str, bytes)) else np.float32)
    return pb_utils.Tensor(name, value)


def value(response, name="OUT"):
    """The elements of an output; None if the response has none of that name."""
    assert not response.has_error(), response.error().message()
    found = pb_utils.get_output_tensor_by_name(response, name)
    return None if found is None else [plain(item) for item in found.as_numpy().ravel().tolist()]


def plain(item):
    return item.decode() if isinstance(item, bytes) else item


def failure(response):
    """Code and text of an error."""
    assert response.has_error()
    assert response.output_tensors() == []
    return [response.error().code().name, response.error().message()]


def seen(response):
    """A response as plain data."""
    if response.has_error():
        return failure(response)
    return {item.name(): value(response, item.name()) for item in response.output_tensors()}


def raised(function, *arguments, **options):
    """Kind and text of what a call raises."""
    try:
        return ["nothing", str(function(*arguments, **options))]
    except Exception as error:
        return [type(error).__name__, str(error)]


def in_threads(function, *rows):
    """What a function gives for each row, all at once in threads; exceptions are raised again."""
    found = [None] * len(rows)

    def run(index, row):
        try:
            found[index] = function(row)
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=entry) for entry in enumerate(rows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for item in found:
        if isinstance(item, BaseException):
            raise item
    return found


def answer(returned):
    if isinstance(returned, pb_utils.InferenceResponse):
        return returned
    if isinstance(returned, list) and returned and isinstance(returned[0], pb_utils.Tensor):
        return pb_utils.InferenceResponse(returned)
    return pb_utils.InferenceResponse([tensor("JSON", [json.dumps(returned)])])


def function(request, keyword):
    """The request's code as a function of the request and its arrays; nothing else refers to it."""
    code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
    names = {}
    source = f"{keyword} run(request, IN_tensor, DATA_tensor, BF16_tensor, IN, DATA):\n" + textwrap.indent(code, "    ")
    exec(compile(source, "<caller>", "exec"), globals(), names)
    given = [pb_utils.get_input_tensor_by_name(request, name) for name in ("IN", "DATA", "BF16")]
    return lambda: names["run"](request, *given, *(None if item is None else item.as_numpy() for item in given[:2]))
