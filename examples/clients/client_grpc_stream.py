"""Receives the responses of the decoupled model count_up on a stream."""

import argparse
import queue

import numpy as np
import tritonclient.grpc as client

RESPONSE_TIMEOUT_S = 30


def responses(arrived):
    """Yields numbers until the response that is marked as the last one."""
    while True:
        result, error = arrived.get(timeout=RESPONSE_TIMEOUT_S)
        if error is not None:
            raise error
        if result.get_response().outputs:
            yield int(result.as_numpy("NUMBER")[0])
        if result.get_response().parameters["triton_final_response"].bool_param:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    arrived = queue.Queue()  # a thread of the client fills it
    with client.InferenceServerClient(options.url) as server:
        server.start_stream(callback=lambda result, error: arrived.put((result, error)))
        tensor = client.InferInput("LIMIT", [1], "INT32").set_data_from_numpy(np.array([5], np.int32))
        server.async_stream_infer("count_up", [tensor], enable_empty_final_response=True)
        numbers = list(responses(arrived))
        server.stop_stream()
    print(f"count_up sent {numbers}")
    assert numbers == [1, 2, 3, 4, 5]
    print("PASS: clients")


if __name__ == "__main__":
    main()
