"""Asks the converter for several units, and looks which models are loaded after each answer."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

MODELS = ("to_fahrenheit", "to_kelvin")


def convert(client, unit, celsius):
    inputs = [
        httpclient.InferInput("UNIT", [1], "BYTES").set_data_from_numpy(np.array([unit], dtype=object)),
        httpclient.InferInput("CELSIUS", celsius.shape, "FP32").set_data_from_numpy(celsius),
    ]
    return client.infer("converter", inputs).as_numpy("CONVERTED")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    celsius = np.array([-40, 0, 100], dtype=np.float32)
    expected = {"fahrenheit": celsius * 9 / 5 + 32, "kelvin": celsius + 273.15}

    with httpclient.InferenceServerClient(options.url) as client:
        for unit in ("fahrenheit", "kelvin", "kelvin", "fahrenheit"):
            converted = convert(client, unit, celsius)
            np.testing.assert_allclose(converted, expected[unit], rtol=1e-5)
            loaded = [model for model in MODELS if client.is_model_ready(model)]
            print(f"{celsius} in {unit} is {converted}; loaded: {', '.join(loaded)}")
            assert loaded == [f"to_{unit}"]
        try:
            convert(client, "rankine", celsius)
        except InferenceServerException as error:
            print(f"rankine: {error.message()}")
        else:
            raise AssertionError("an unknown unit was converted")

    print("PASS: model_control")


if __name__ == "__main__":
    main()
