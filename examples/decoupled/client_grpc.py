"""Calls the decoupled models themselves, on a gRPC stream, and prints each response when it comes."""

import argparse
import queue

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

RESPONSE_TIMEOUT_S = 30


def tensor(name, values, datatype):
    return grpcclient.InferInput(name, values.shape, datatype).set_data_from_numpy(values)


def ask_repeat(client, request_id, values, delays_ms):
    sent = [
        tensor("VALUES", np.array(values, dtype=np.int32), "INT32"),
        tensor("DELAYS_MS", np.array(delays_ms, dtype=np.uint32), "UINT32"),
    ]
    # Without the last argument, the end of an answer is told only if a response carries it.
    client.async_stream_infer("repeat", sent, request_id=request_id, enable_empty_final_response=True)


def responses(arrived):
    """Yields the responses to one request until the model has ended its answer."""
    while True:
        result, error = arrived.get(timeout=RESPONSE_TIMEOUT_S)
        if error is not None:
            raise error
        response = result.get_response()
        if response.outputs:
            yield result
        if response.parameters["triton_final_response"].bool_param:
            return


def refusal(arrived):
    try:
        return f"none, but {len(list(responses(arrived)))} responses"
    except InferenceServerException as error:
        return error.message()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    arrived = queue.Queue()  # a thread of the client fills it
    with grpcclient.InferenceServerClient(options.url) as client:
        client.start_stream(callback=lambda result, error: arrived.put((result, error)))

        ask_repeat(client, "four", [4, 2, 0, 1], [100, 0, 50, 0])
        values = []
        for result in responses(arrived):
            assert result.get_response().id == "four"
            index, value = result.as_numpy("INDEX")[0], result.as_numpy("VALUE")[0]
            print(f"repeat sent response {index}: {value}")
            values.append(int(value))
        assert values == [4, 2, 0, 1]

        ask_repeat(client, "none", [], [])
        count = len(list(responses(arrived)))
        print(f"repeat sent {count} responses: a request may have none at all")
        assert count == 0

        ask_repeat(client, "wrong", [1, 2, 3], [0])
        text = refusal(arrived)
        print(f"repeat sent an error: {text}")
        assert text == "each value needs a delay"

        # An error ends one answer. The stream goes on.
        client.async_stream_infer(
            "square",
            [tensor("NUMBER", np.array([3], dtype=np.int32), "INT32")],
            enable_empty_final_response=True,
        )
        numbers = [int(result.as_numpy("NUMBER")[0]) for result in responses(arrived)]
        print(f"square sent {numbers}: together {sum(numbers)}")
        assert numbers == [3, 3, 3]
        client.stop_stream()
    print("PASS: decoupled")


if __name__ == "__main__":
    main()
