"""Has decoupled models called by models that collect their responses, and checks how many came, and in what order."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def tensor(name, values, datatype):
    return httpclient.InferInput(name, values.shape, datatype).set_data_from_numpy(values)


def repeat(client, values, delays_ms):
    sent = [
        tensor("VALUES", np.array(values, dtype=np.int32), "INT32"),
        tensor("DELAYS_MS", np.array(delays_ms, dtype=np.uint32), "UINT32"),
    ]
    result = client.infer("repeat_front", sent)
    return result.as_numpy("VALUES").tolist(), result.as_numpy("AFTER_MS").round().astype(int).tolist()


def square(client, numbers):
    result = client.infer("square_front", [tensor("NUMBERS", np.array(numbers, dtype=np.int32), "INT32")])
    return result.as_numpy("SUMS").tolist(), result.as_numpy("ORDER").tolist()


def refusal(function, *arguments):
    try:
        return "200", str(function(*arguments))
    except InferenceServerException as error:
        return error.status(), error.message()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with httpclient.InferenceServerClient(options.url) as client:
        values, after_ms = repeat(client, [4, 2, 0, 1], [100, 0, 50, 0])
        print(f"repeat sent {values}, after {after_ms} ms")
        assert values == [4, 2, 0, 1]
        assert after_ms[0] >= 100, "the first response came before its time"
        assert after_ms[2] >= 150, "the third response came before its time"
        assert after_ms == sorted(after_ms)

        values, _ = repeat(client, [], [])
        print(f"repeat sent {values}: a request may have no response at all")
        assert values == []

        status, text = refusal(repeat, client, [1, 2, 3], [0])
        print(f"repeat sent an error: {status}, {text}")
        assert (status, text) == ("400", "each value needs a delay")

        numbers = [6, 1, 3, 0]
        sums, order = square(client, numbers)
        print(f"square was asked {numbers} and sent {order}: together {sums}")
        assert sums == [number**2 for number in numbers]
        assert sorted(order) == [1, 3, 3, 3, 6, 6, 6, 6, 6, 6]
        assert order[-1] == 6, "the request that came first has the most responses, and ends last"

        number = tensor("NUMBER", np.array([3], dtype=np.int32), "INT32")
        status, text = refusal(client.infer, "square", [number])
        print(f"square, asked by HTTP itself: {status}, {text}")
        assert status == "501"
        assert text.startswith("HTTP end point doesn't support models with decoupled transaction policy"), text
    print("PASS: decoupled")


if __name__ == "__main__":
    main()
