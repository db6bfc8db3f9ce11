"""Asks for the configuration that two models wrote for themselves, then uses both."""

import argparse

import numpy as np
import tritonclient.http as httpclient


def double(client, model, tensor):
    sent = httpclient.InferInput("INPUT0", tensor.shape, "FP32").set_data_from_numpy(tensor)
    return client.infer(model, [sent]).as_numpy("OUTPUT0")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with httpclient.InferenceServerClient(options.url) as client:
        for model, batch, metadata_shape, tensor_shape in [
            ("nobatch_model", 0, [4], (4,)),
            ("batch_model", 4, [-1, 4], (3, 4)),
        ]:
            config = client.get_model_config(model)
            metadata = client.get_model_metadata(model)
            print(f"{model}: max_batch_size {config['max_batch_size']}, INPUT0 {metadata['inputs'][0]['shape']}")
            assert config["max_batch_size"] == batch, config
            assert metadata["inputs"][0]["shape"] == metadata_shape, metadata

            tensor = np.arange(np.prod(tensor_shape), dtype=np.float32).reshape(tensor_shape)
            np.testing.assert_array_equal(double(client, model, tensor), tensor * 2)
    print("PASS: auto_complete")


if __name__ == "__main__":
    main()
