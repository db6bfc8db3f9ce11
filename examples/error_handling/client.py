"""Provokes errors of every kind and checks the status and the text that a client gets for each."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

STATUSES = {
    "INVALID_ARG": "400",
    "ALREADY_EXISTS": "400",
    "CANCELLED": "400",
    "UNKNOWN": "400",
    "NOT_FOUND": "404",
    "INTERNAL": "500",
    "UNSUPPORTED": "501",
    "UNAVAILABLE": "503",
}

FAILED = "Failed to process the request(s) for model 'misbehave_0', message: "

MISTAKES = {
    "ValueError": FAILED + "ValueError: a mistake in the model",
    "TritonModelException": FAILED + "TritonModelException: something that the model found out",
    "SystemExit": FAILED + "SystemExit: 3",
    "no input": FAILED + "AttributeError: 'NoneType' object has no attribute 'as_numpy'",
    "text": FAILED + "Expected an 'InferenceResponse' object in the execute function return list, found type",
    "list too long": FAILED + "Number of InferenceResponse objects do not match the number of InferenceRequest objects",
    "list missing": "The model returned no response for this request",
}


def text_tensor(name, text):
    array = np.array([text], dtype=np.object_)
    return httpclient.InferInput(name, array.shape, "BYTES").set_data_from_numpy(array)


def number_tensor(numbers):
    array = np.array([numbers], dtype=np.float32)
    return httpclient.InferInput("NUMBERS", array.shape, "FP32").set_data_from_numpy(array)


def roots(result):
    return f"{result.as_numpy('ROOTS')[0].tolist()}, {result.as_numpy('TOGETHER').item()} requests together"


def outcome(receive):
    """The status and the text of a reply; for a result, 200 and the result."""
    try:
        return "200", receive()
    except InferenceServerException as error:
        return error.status(), error.message()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with httpclient.InferenceServerClient(options.url, concurrency=3) as client:
        for code, expected in STATUSES.items():
            tensor = text_tensor("CODE", code)
            status, text = outcome(lambda tensor=tensor: client.infer("any_error", [tensor]))
            print(f"{code}: {status}, {text}")
            assert (status, text) == (expected, f"an error of kind {code}")

        # Three requests that reach the model as one batch, the second of them bad: the other two are answered.
        batch = [[4, 9], [1, -1], [0, 2.25]]
        sent = {str(numbers): client.async_infer("square_root", [number_tensor(numbers)]) for numbers in batch}
        outcomes = {numbers: outcome(lambda one=one: roots(one.get_result())) for numbers, one in sent.items()}
        for numbers, (status, text) in outcomes.items():
            print(f"roots of {numbers}: {status}, {text}")
        assert outcomes == {
            "[4, 9]": ("200", "[2.0, 3.0], 3 requests together"),
            "[1, -1]": ("400", "-1 has no square root that is a real number"),
            "[0, 2.25]": ("200", "[0.0, 1.5], 3 requests together"),
        }

        for how, expected in MISTAKES.items():
            tensor = text_tensor("HOW", how)
            status, text = outcome(lambda tensor=tensor: client.infer("misbehave", [tensor]))
            print(f"{how}: {status}, {text.splitlines()[0]}")
            assert status == "500"
            assert text.startswith(expected), text
            if how == "ValueError":
                assert "misbehave/1/model.py(" in text, "the place of the mistake is missing"

        # Nothing of this has hurt the process: it goes on serving.
        result = client.infer("misbehave", [text_tensor("HOW", "as it should")])
        assert result.as_numpy("DONE")[0] == b"as it should"
    print("PASS: error_handling")


if __name__ == "__main__":
    main()
