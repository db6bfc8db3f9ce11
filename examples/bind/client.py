"""Binds functions of this program as models, serves them, and calls them as any client would."""

import argparse
import threading

import numpy as np

from pybackend_bind.client import DecoupledModelClient, FuturesModelClient, ModelClient
from pybackend_bind.decorators import batch
from pybackend_bind.model_config import DynamicBatcher, ModelConfig, Tensor
from pybackend_bind.triton import Triton, TritonConfig

WEIGHTS = np.array([[1.0], [2.0]], dtype=np.float32)  # they stay in this process


@batch
def linear(features):
    return {"result": features @ WEIGHTS}


class Scaler:
    """An instance with a state; each one runs in its own thread."""

    def __init__(self, factor):
        self.factor = np.float32(factor)
        self.threads = set()

    @batch
    def __call__(self, value):
        self.threads.add(threading.current_thread().name)
        return [value * self.factor]


@batch
def count(limit):
    for number in range(int(limit[0, 0])):
        yield {"number": np.full_like(limit, number)}


def bind_all(triton, scalers):
    triton.bind(
        model_name="linear",
        infer_func=linear,
        inputs=[Tensor(name="features", dtype=np.float32, shape=(2,))],
        outputs=[Tensor(name="result", dtype=np.float32, shape=(1,))],
        config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=500)),
        strict=True,
    )
    triton.bind(
        model_name="scaler",
        infer_func=scalers,
        inputs=[Tensor(name="value", dtype=np.float32, shape=(1,))],
        outputs=[Tensor(name="scaled", dtype=np.float32, shape=(1,))],
        config=ModelConfig(max_batch_size=1),
    )
    triton.bind(
        model_name="count",
        infer_func=count,
        inputs=[Tensor(name="limit", dtype=np.int32, shape=(1,))],
        outputs=[Tensor(name="number", dtype=np.int32, shape=(1,))],
        config=ModelConfig(decoupled=True),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve on the usual ports until Ctrl-C")
    parser.add_argument("--url", help="ignored: this program has a server of its own")
    given = parser.parse_args()

    scalers = [Scaler(3), Scaler(3)]
    if given.serve:
        with Triton() as triton:
            bind_all(triton, scalers)
            triton.serve()
        return

    free = TritonConfig(http_port=0, grpc_port=0, metrics_port=0, http_address="127.0.0.1", grpc_address="127.0.0.1")
    with Triton(config=free) as triton:
        bind_all(triton, scalers)
        http, grpc = triton.addresses["http"], triton.addresses["grpc"]

        with ModelClient(http, "linear") as client:
            answer = client.infer_batch(features=np.array([[1, 1], [2, 3]], dtype=np.float32))
        print(f"linear: {answer['result'].ravel().tolist()}")
        assert answer["result"].ravel().tolist() == [3, 8]

        with FuturesModelClient(http, "scaler") as client:
            futures = [client.infer_sample(np.array([number], dtype=np.float32)) for number in range(8)]
            found = [float(future.result()["scaled"][0]) for future in futures]
        print(f"scaler, eight at once in {len(scalers)} threads: {found}")
        assert found == [0, 3, 6, 9, 12, 15, 18, 21]

        with DecoupledModelClient(f"grpc://{grpc}", "count") as client:
            numbers = [int(each["number"][0]) for each in client.infer_sample(np.array([4], dtype=np.int32))]
        print(f"count: {numbers}")
        assert numbers == [0, 1, 2, 3]
    print("PASS: bind")


if __name__ == "__main__":
    main()
