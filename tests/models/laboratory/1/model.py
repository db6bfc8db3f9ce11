"""Runs the code that a test sends as the body of ``execute``."""

# ruff: noqa: F401  the modules are there for code that tests send

import gc
import json
import math
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


def out(**arrays):
    """The usual return value: one response."""
    return [pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])]


def text(*elements):
    """A BYTES array of texts."""
    return np.array([str(element) for element in elements], dtype=object)


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        code = tensor(request, "CODE").as_numpy()[0].decode()
        names = dict(globals(), request=request, tensor=lambda name: tensor(request, name))
        names["array"] = lambda name: tensor(request, name).as_numpy()
        exec(compile("def run():\n" + textwrap.indent(code, "    "), "<laboratory>", "exec"), names)
        try:
            return names["run"]()
        finally:
            names.clear()  # else function and names would keep each other, and the request's memory with them


def tensor(request, name):
    return pb_utils.get_input_tensor_by_name(request, name)
