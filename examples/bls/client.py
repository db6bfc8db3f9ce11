"""Calls the models that call other models, and checks what comes back, errors included."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def ask(client, model, values, target=None):
    """Runs a model on VALUES and returns its outputs by name; `target` is what ask_one is to call."""
    values = np.array(values, dtype=np.float32)
    inputs = [httpclient.InferInput("VALUES", values.shape, "FP32").set_data_from_numpy(values)]
    if target is not None:
        name = np.array([target], dtype=np.object_)
        inputs.append(httpclient.InferInput("MODEL", name.shape, "BYTES").set_data_from_numpy(name))
    result = client.infer(model, inputs)
    return {output["name"]: result.as_numpy(output["name"]).item() for output in result.get_response()["outputs"]}


def refusal(client, model, values, target=None):
    """The status and the first line of the error that a model answers with."""
    try:
        return "200", str(ask(client, model, values, target))
    except InferenceServerException as error:
        return error.status(), error.message().splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()
    values = [1, 2, 3, 4, 5, 6, 7, 100]

    with httpclient.InferenceServerClient(options.url) as client:
        for target, expected in (("mean", 16.0), ("median", 4.5)):
            outputs = ask(client, "ask_one", values, target)
            print(f"ask_one calls {target}: {outputs}")
            assert outputs == {"RESULT": expected}

        outputs = ask(client, "ask_all", values)
        print(f"ask_all calls both: {outputs}")
        assert outputs == {"MEAN": 16.0, "MEDIAN": 4.5}

        for model, parts in (("add_parts", 3), ("add_parts_async", 4)):
            outputs = ask(client, model, values)
            print(f"{model} calls split: {outputs}")
            assert outputs == {"SUM": 128.0, "PARTS": parts}

        # The called model's own error arrives with its text and its code.
        status, text = refusal(client, "ask_one", [], "mean")
        print(f"ask_one, mean of nothing: {status}, {text}")
        assert (status, text) == ("400", "no values have no mean")

        status, text = refusal(client, "ask_one", values, "mode")
        print(f"ask_one, no such model: {status}, {text}")
        assert "Request for unknown model: 'mode' is not found" in text, text

        status, text = refusal(client, "ask_all", [])
        print(f"ask_all raises: {status}, {text}")
        assert status == "500"
        assert "mean: no values have no mean" in text, text
    print("PASS: bls")


if __name__ == "__main__":
    main()
