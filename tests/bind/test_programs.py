"""Programs in the manner of PyTriton's, of which only the import is another one: server and client are two programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import DEADLINE_S

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P15")]

SERVER = """
import logging
import numpy as np

from pybackend_bind.decorators import batch, first_value, group_by_values, sample
from pybackend_bind.model_config import DynamicBatcher, ModelConfig, Tensor
from pybackend_bind.triton import Triton

VALUES = np.full((3, 2), 2.0, np.float32)


@batch
def linear(**inputs):
    (data,) = inputs.values()
    return [data @ VALUES]


@batch
def add_sub(**inputs):
    a, b = inputs.values()
    return {"add": a + b, "sub": a - b}


@batch
def unnamed(INPUT_1, INPUT_2):
    return [INPUT_1 * INPUT_2]


@batch
def identity(images):
    return {"images": images}


@batch
@group_by_values("language")
@first_value("language")
def greet(names, language):
    greeting = {b"de": b"Hallo ", b"en": b"Hello "}[language]
    return {"greetings": np.array([[greeting + name] for name in names[:, 0]], dtype=np.bytes_)}


@sample
def plain(number):
    return {"next": number + 1}


class Instance:
    def __init__(self, device):
        self._device = device

    @batch
    def __call__(self, data):
        return {"device": np.full((len(data), 1), self._device, np.int32)}


def stream(requests):
    for step in range(3):
        yield [{"step": request["start"] + step} for request in requests]


logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(name)s: %(message)s")
with Triton() as triton:
    triton.bind(
        model_name="Linear",
        infer_func=linear,
        inputs=[Tensor(dtype=VALUES.dtype, shape=(-1,))],
        outputs=[Tensor(dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=128, batcher=DynamicBatcher(max_queue_delay_microseconds=5000)),
        strict=True,
    )
    pair = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("a", "b")]
    outputs = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("add", "sub")]
    triton.bind("AddSub", add_sub, pair, outputs, config=ModelConfig(max_batch_size=128), strict=True)
    triton.bind("Unnamed", unnamed, [Tensor(dtype=np.float32, shape=(1,))] * 2, [Tensor(dtype=np.float32, shape=(1,))])
    image = Tensor(name="images", dtype=np.uint8, shape=(-1, -1, 3))
    triton.bind("Identity", identity, [image], [image], strict=True)
    words = [Tensor(name=name, dtype=bytes, shape=(1,)) for name in ("names", "language", "greetings")]
    triton.bind("Greet", greet, words[:2], words[2:], config=ModelConfig(max_batch_size=16))
    number = Tensor(dtype=np.int64, shape=(1,), name="number")
    triton.bind("Plain", plain, [number], [Tensor(dtype=np.int64, shape=(1,), name="next")], config=ModelConfig(batching=False))
    triton.bind(
        "Instances",
        [Instance(0), Instance(1)],
        [Tensor(name="data", dtype=np.float32, shape=(1,))],
        [Tensor(name="device", dtype=np.int32, shape=(1,))],
        config=ModelConfig(max_batch_size=1),
    )
    triton.bind(
        "Stream",
        stream,
        [Tensor(name="start", dtype=np.int32, shape=(1,))],
        [Tensor(name="step", dtype=np.int32, shape=(1,))],
        config=ModelConfig(decoupled=True),
    )
    logging.getLogger("examples").info("Serving inference")
    triton.serve()
"""

CLIENT = """
import asyncio
import sys
from pathlib import Path
from typing import Any
import numpy as np

from pybackend_bind.client import AsyncioModelClient, DecoupledModelClient, FuturesModelClient, ModelClient
from pybackend_bind.client.exceptions import PyTritonClientInferenceServerError

http, grpc = sys.argv[1:]


def show(name, result):
    print(name, {key: (str(value.dtype), value.tolist()) for key, value in result.items()})


ones = np.ones((2, 3), np.float32)
for url in (http, grpc):
    with ModelClient(url, "Linear", init_timeout_s=60) as client:
        show("Linear", client.infer_batch(ones))
        show("Linear", client.infer_sample(ones[0]))
with ModelClient(http, "AddSub") as client:
    show("AddSub", client.infer_sample(a=ones[0], b=ones[1]))
with ModelClient(http, "Unnamed") as client:
    show("Unnamed", client.infer_sample(np.array([3], np.float32), np.array([4], np.float32)))
with ModelClient(http, "Identity") as client:
    assert client.infer_sample(np.zeros((32, 24, 3), np.uint8))["images"].shape == (32, 24, 3)
with ModelClient(http, "Greet") as client:
    names = np.char.encode(np.array([["Ada"], ["Emmy"], ["Grace"]]), "utf-8")
    show("Greet", client.infer_batch(names=names, language=np.array([[b"en"], [b"de"], [b"en"]])))
    try:
        client.infer_sample(names[0], np.array([b"xx"]))
    except PyTritonClientInferenceServerError as error:
        print("KeyError" in str(error))
with ModelClient(http, "Plain") as client:
    show("Plain", client.infer_sample(np.array([41])))
with FuturesModelClient(http, "Instances") as client:
    futures = [client.infer_sample(np.zeros(1, np.float32)) for _ in range(16)]
    print({int(future.result()["device"][0]) for future in futures} <= {0, 1})
with DecoupledModelClient(grpc, "Stream") as client:
    for result in client.infer_sample(np.array([7], np.int32)):
        show("Stream", result)


async def main():
    async with AsyncioModelClient(http, "Plain") as client:
        results = await asyncio.gather(*(client.infer_sample(np.array([number])) for number in range(3)))
        print([int(result["next"][0]) for result in results])


asyncio.run(main())
"""

PRINTED = """\
Linear {'OUTPUT_1': ('float32', [[6.0, 6.0], [6.0, 6.0]])}
Linear {'OUTPUT_1': ('float32', [6.0, 6.0])}
Linear {'OUTPUT_1': ('float32', [[6.0, 6.0], [6.0, 6.0]])}
Linear {'OUTPUT_1': ('float32', [6.0, 6.0])}
AddSub {'add': ('float32', [2.0, 2.0, 2.0]), 'sub': ('float32', [0.0, 0.0, 0.0])}
Unnamed {'OUTPUT_1': ('float32', [12.0])}
Greet {'greetings': ('object', [[b'Hello Ada'], [b'Hallo Emmy'], [b'Hello Grace']])}
True
Plain {'next': ('int64', [42])}
True
Stream {'step': ('int32', [7])}
Stream {'step': ('int32', [8])}
Stream {'step': ('int32', [9])}
[1, 2, 3]
"""


def test_programs_of_pytriton_with_another_import() -> None:
    ports = {f"PYTRITON_TRITON_CONFIG_{kind}_PORT": "0" for kind in ("HTTP", "GRPC", "METRICS")}
    addresses = {f"PYTRITON_TRITON_CONFIG_{kind}_ADDRESS": "127.0.0.1" for kind in ("HTTP", "GRPC")}
    environment = {**os.environ, **ports, **addresses}
    with subprocess.Popen([sys.executable, "-c", SERVER], stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            said = ""
            while "Serving inference" not in said:
                line = server.stderr.readline()
                assert line, said
                said += line
            http, grpc = (re.search(rf"Started {service} at (\S+?)\"", said) for service in ("HTTPService", "GRPC\\w+"))
            assert http is not None
            assert grpc is not None
            client = subprocess.run(
                [sys.executable, "-c", CLIENT, http[1], f"grpc://{grpc[1]}"],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert (client.stdout, client.stderr, client.returncode) == (PRINTED, "", 0)
            server.send_signal(signal.SIGTERM)
            _, said = server.communicate(timeout=DEADLINE_S)
            assert server.returncode == 0, said
        finally:
            server.kill()


def test_the_program_of_the_manual() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming-from-pytriton.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    free = 'Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0, http_address="127.0.0.1"))'
    call = """with ModelClient(triton.addresses["http"], "linear") as client:
        answer = client.infer_sample(np.ones(2, np.float32))"""
    imports = "from pybackend_bind import TritonConfig\nfrom pybackend_bind.client import ModelClient\n"
    assert code.count("Triton()") == code.count("triton.serve()") == 1
    names: dict[str, Any] = {}
    exec(imports + code.replace("Triton()", free).replace("triton.serve()", call), names)
    assert names["answer"]["result"].tolist() == [3]
