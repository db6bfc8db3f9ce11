"""Calls scale many times at once with Triton's HTTP client for asyncio."""

import argparse
import asyncio

import numpy as np
import tritonclient.http.aio as client


async def scale(server, x, factor):
    tensor = client.InferInput("X", x.shape, "FP32").set_data_from_numpy(x)
    result = await server.infer("scale", [tensor], parameters={"factor": factor})
    return result.as_numpy("Y").tolist()


async def call(url):
    x = np.array([1, 2, 3], dtype=np.float32)
    async with client.InferenceServerClient(url) as server:
        answers = await asyncio.gather(*(scale(server, x, factor) for factor in range(20)))
    print(f"20 answers, the last of them {answers[-1]}")
    assert answers == [[factor, 2 * factor, 3 * factor] for factor in range(20)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    asyncio.run(call(parser.parse_args().url))
    print("PASS: clients")


if __name__ == "__main__":
    main()
