"""Reads three texts from babble on one gRPC stream: they are generated together, and their pieces come as they are
ready."""

import argparse
import json
import queue

import numpy as np
import tritonclient.grpc as grpcclient

PROMPTS = ["the server", "a model asks for", "two words"]
SAMPLING = {"max_tokens": 12, "min_tokens": 12, "temperature": 0}
RESPONSE_TIMEOUT_S = 30


def tensor(name, value, datatype):
    array = np.array([value], dtype=bool if datatype == "BOOL" else object)
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    arrived = queue.Queue()  # a thread of the client fills it
    texts = dict.fromkeys(PROMPTS, "")
    tokens = dict.fromkeys(PROMPTS, 0)
    with grpcclient.InferenceServerClient(options.url) as client:
        client.start_stream(callback=lambda result, error: arrived.put((result, error)))
        for prompt in PROMPTS:
            sent = [
                tensor("text_input", prompt, "BYTES"),
                tensor("stream", True, "BOOL"),
                tensor("return_num_output_tokens", True, "BOOL"),
                tensor("sampling_parameters", json.dumps(SAMPLING), "BYTES"),
            ]
            client.async_stream_infer("babble", sent, request_id=prompt)
        unfinished = set(PROMPTS)
        while unfinished:
            result, error = arrived.get(timeout=RESPONSE_TIMEOUT_S)
            assert error is None, error
            response = result.get_response()
            texts[response.id] += result.as_numpy("text_output")[0].decode()
            tokens[response.id] += int(result.as_numpy("num_output_tokens")[0])
            if response.parameters["triton_final_response"].bool_param:
                unfinished.remove(response.id)
        client.stop_stream()

    for prompt, text in texts.items():
        print(f"{prompt} -> {text}")
    assert set(tokens.values()) == {SAMPLING["max_tokens"]}
    print("PASS: text_generation")


if __name__ == "__main__":
    main()
