"""Sends two vectors to add_sub in shared memory, and reads their sum and difference there.

The server must run on this machine, with --allow-client-shm=true.
"""

import argparse
import os

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import shared_memory

COUNT = 4
NBYTES = COUNT * 4


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    left = np.array([1, 2, 3, 4], dtype=np.float32)
    right = np.array([10, 20, 30, 40], dtype=np.float32)

    # One region for everything: two inputs, then two outputs. Other clients have other names.
    name = f"add_sub_{os.getpid()}"
    region = shared_memory.create_shared_memory_region(name, f"/{name}", 4 * NBYTES)
    try:
        with httpclient.InferenceServerClient(options.url) as client:
            client.register_system_shared_memory(name, f"/{name}", 4 * NBYTES)
            try:
                shared_memory.set_shared_memory_region(region, [left, right])
                client.infer("add_sub", inputs(name), outputs=outputs(name))
            finally:
                client.unregister_system_shared_memory(name)

        total = shared_memory.get_contents_as_numpy(region, np.float32, [COUNT], offset=2 * NBYTES).copy()
        difference = shared_memory.get_contents_as_numpy(region, np.float32, [COUNT], offset=3 * NBYTES).copy()
    finally:
        shared_memory.destroy_shared_memory_region(region)

    print(f"{left} + {right} = {total}")
    print(f"{left} - {right} = {difference}")
    np.testing.assert_allclose(total, left + right)
    np.testing.assert_allclose(difference, left - right)
    print("PASS: add_sub")


def inputs(region):
    tensors = [httpclient.InferInput(name, [COUNT], "FP32") for name in ("INPUT0", "INPUT1")]
    for place, tensor in enumerate(tensors):
        tensor.set_shared_memory(region, NBYTES, offset=place * NBYTES)
    return tensors


def outputs(region):
    tensors = [httpclient.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
    for place, tensor in enumerate(tensors, start=2):
        tensor.set_shared_memory(region, NBYTES, offset=place * NBYTES)
    return tensors


if __name__ == "__main__":
    main()
