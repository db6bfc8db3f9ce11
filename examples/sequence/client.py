"""Sends the numbers of several sequences at once, and checks that each has its own total at one instance."""

import argparse
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

NUMBERS = [3, 1, 4, 1, 5]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    def ask(client, model, value, **sequence):
        array = np.array([[value]], dtype=np.int32)
        return client.infer(
            model, [httpclient.InferInput("VALUE", array.shape, "INT32").set_data_from_numpy(array)], **sequence
        )

    def run(model, sequence_id):
        totals, instances = [], set()
        with httpclient.InferenceServerClient(options.url) as client:
            for place, number in enumerate(NUMBERS):
                flags = {"sequence_start": place == 0, "sequence_end": place == len(NUMBERS) - 1}
                result = ask(client, model, number * sequence_id, sequence_id=sequence_id, **flags)
                totals.append(int(result.as_numpy("TOTAL")[0, 0]))
                instances.add(result.as_numpy("INSTANCE")[0, 0].decode())
        assert totals == (np.cumsum(NUMBERS) * sequence_id).tolist(), totals
        (instance,) = instances
        return totals, instance

    for model in ("accumulate", "accumulate_oldest"):
        with ThreadPoolExecutor(6) as threads:
            results = list(threads.map(lambda number: run(model, number), range(1, 7)))  # noqa: B023  used in this turn
        print(f"{model}: sequence 1 has the totals {results[0][0]}")
        print(f"{model}: 6 sequences were served by {len({instance for _, instance in results})} instances")

    with httpclient.InferenceServerClient(options.url) as client:
        try:
            ask(client, "accumulate", 1, sequence_id=99)
        except InferenceServerException as error:
            refusal = f"{error.status()}, {error.message()}"
        else:
            refusal = "none"
    print(f"without a start: {refusal}")
    assert "must specify the START flag" in refusal, "a sequence began in the middle"
    print("PASS: sequence")


if __name__ == "__main__":
    main()
