"""Serves a repository inside this process, and calls its model from a thread and from coroutines."""

import argparse
import asyncio
from pathlib import Path

import numpy as np

import pybackend

MODELS = Path(__file__).resolve().parent / "model_repository"


def means(responses):
    return [float(np.asarray(response.outputs["MEAN"])[0]) for response in responses if response.outputs]


async def ask_at_once(model, rows):
    async def ask(row):
        return means([response async for response in model.async_infer(inputs={"NUMBERS": row})])

    return await asyncio.gather(*map(ask, rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="ignored: this program is its own server")
    parser.parse_args()

    numbers = np.array([1, 2, 6, 3], dtype=np.float32)
    with pybackend.Server(model_repository=MODELS) as server:
        model = server.model("running_mean")
        found = means(model.infer(inputs={"NUMBERS": numbers}))
        print(f"the means of {numbers.tolist()} are {found}")
        assert found == [1, 1.5, 3, 3]

        rows = [numbers[:count] for count in (1, 2, 3)]
        together = asyncio.run(ask_at_once(model, rows))
        print(f"asked at once: {together}")
        assert together == [[1], [1, 1.5], [1, 1.5, 3]]

        (success,) = [line for line in server.metrics().splitlines() if line.startswith("nv_inference_request_success")]
        print(success)
    print("PASS: in_process")


if __name__ == "__main__":
    main()
