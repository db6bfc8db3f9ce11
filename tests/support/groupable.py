"""Models of which one calls the other often, and what keeps them busy."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support.inference import infer
from tests.support.repositories import identity_config, write_model
from tests.support.server import ServerProcess

ONE = "instance_group { kind: KIND_CPU }"
CALLS = """
class TritonPythonModel:
    def initialize(self, args):
        self.called = args["model_name"].replace("calls_", "")

    def execute(self, requests):
        for _ in range(200):
            tensor = pb_utils.Tensor("IN", np.zeros(4, np.float32))
            request = pb_utils.InferenceRequest(model_name=self.called, inputs=[tensor], requested_output_names=["OUT"])
            assert not request.exec().has_error()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])]
"""


@contextmanager
def calling(server: ServerProcess, *models: str) -> Iterator[None]:
    """These models get requests meanwhile."""
    ends = threading.Event()

    def send(model: str) -> None:
        while not ends.is_set():
            assert infer(server, model, {"IN": np.zeros(1, np.float32)}).status == 200

    threads = [threading.Thread(target=send, args=[model]) for model in models]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def write_pair(repository: Path, called: str, code: str, extra: str = "", both: str = ONE) -> None:
    """Write a model, and ``calls_`` and its name, which calls it 200 times for each request."""
    write_model(repository, called, f"import time\n{code}", identity_config(extra=extra + both))
    write_model(repository, f"calls_{called}", CALLS, identity_config(extra=both))
