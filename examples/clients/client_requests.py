"""Calls scale with the package requests: JSON, and a stream of events from count_up."""

import argparse
import json

import requests

TIMEOUT_S = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    models = f"http://{parser.parse_args().url}/v2/models"

    with requests.Session() as session:
        body = {
            "inputs": [{"name": "X", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}],
            "parameters": {"factor": 10},
        }
        reply = session.post(f"{models}/scale/infer", json=body, timeout=TIMEOUT_S)
        reply.raise_for_status()
        (output,) = reply.json()["outputs"]
        print(f"scale: {output['data']}")
        assert output["data"] == [10, 20, 30]

        refused = session.post(f"{models}/scale/infer", json={"inputs": []}, timeout=TIMEOUT_S)
        print(f"without an input: {refused.status_code}, {refused.json()['error']}")
        assert refused.status_code == 400

        with session.post(
            f"{models}/count_up/generate_stream", json={"LIMIT": 3}, stream=True, timeout=TIMEOUT_S
        ) as events:
            lines = [line for line in events.iter_lines() if line]
        numbers = [json.loads(line.removeprefix(b"data: "))["NUMBER"] for line in lines]
        print(f"count_up sent {numbers}")
        assert numbers == [1, 2, 3]
    print("PASS: clients")


if __name__ == "__main__":
    main()
