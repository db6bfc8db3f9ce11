"""Runs the code that a test sends, which answers by response senders."""

# ruff: noqa: F401  the modules are there for code that tests send

import asyncio
import gc
import json
import sys
import textwrap
import threading
import weakref

import numpy as np
import triton_python_backend_utils as pb_utils

state = {}
"""What code keeps from one execution to the next."""

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def out(*values, **parameters):
    """A response of integers."""
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("OUT", np.array(values, np.int32))], parameters=parameters or None
    )


def text(*values):
    """A response of texts."""
    return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([str(value) for value in values], object))])


def failed(message, code=pb_utils.TritonError.INTERNAL):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


def array(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


class TritonPythonModel:
    def initialize(self, args):
        state["directory"] = args["model_repository"]

    def execute(self, requests):
        names = {}
        exec(compile(array(requests[0], "CODE").flat[0].decode(), "<streams>", "exec"), globals(), names)
        return names["run"](*requests)
