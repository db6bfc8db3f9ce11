"""The tasks of a rollout. Each is a plain function that a scheduler such as Airflow can run in a process of its own."""

import base64
import json
import time
from pathlib import Path

import numpy as np

from pybackend_client import Client, ClientError

MODEL = "risk"
CONTROL = f"/v2/repository/models/{MODEL}"
REPOSITORY = Path(__file__).resolve().parent / "model_repository" / MODEL
CONFIG = {
    "backend": "python",
    "version_policy": {"all": {}},
    "input": [{"name": "amount", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "risk", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"count": 1}],
    "parameters": {"TRAFFIC_WEIGHTS": {"string_value": "1=1"}},  # the new version answers nobody yet
}
SAMPLE = np.array([1.0, 250.0, 1000.0, 9000.0], np.float32)
TIMEOUT_S = 60.0


class CanaryError(Exception):
    """The new version must not take over."""


def upload(url, candidate):
    """Put a candidate beside the version that serves, as version 2. Nobody gets its answers yet."""
    files = {"1/model.py": REPOSITORY / "1" / "model.py", "2/model.py": Path(candidate) / "model.py"}
    contents = {f"file:{name}": base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
    with Client(url) as client:
        client.request("POST", f"{CONTROL}/load", {"parameters": {"config": json.dumps(CONFIG), **contents}})


def check_answers(url):
    """Ask both versions the same. Raises CanaryError if the new one answers something else, or fails."""
    with Client(url) as client:
        expected = client(MODEL, version=1).infer(amount=SAMPLE)["risk"]
        try:
            found = client(MODEL, version=2).infer(amount=SAMPLE)["risk"]
        except ClientError as error:
            raise CanaryError(f"version 2 fails: {error}") from None
        if not np.allclose(found, expected, atol=1e-5):
            raise CanaryError(f"version 2 answers {found.tolist()}, and version 1 {expected.tolist()}")


def share(url, percent):
    """Let the new version answer so many of 100 requests of all clients."""
    with Client(url) as client:
        client.request("POST", f"{CONTROL}/traffic", {"weights": {"1": 100 - percent, "2": percent}})


def watch(url, requests):
    """Wait until the new version has answered so many requests. Raises CanaryError as soon as one has failed."""
    end = time.monotonic() + TIMEOUT_S
    with Client(url) as client:
        while True:
            document = client.request("GET", f"/v2/models/{MODEL}/versions/2/stats")
            counts = {name: each["count"] for name, each in document["model_stats"][0]["inference_stats"].items()}
            if counts["fail"]:
                raise CanaryError(
                    f"version 2 has failed {counts['fail']} of {counts['fail'] + counts['success']} requests"
                )
            if counts["success"] >= requests:
                return counts["success"]
            if time.monotonic() > end:
                raise CanaryError(f"version 2 got {counts['success']} requests in {TIMEOUT_S:g} s: too few to tell")
            time.sleep(0.05)


def promote(url):
    """Let the new version answer all requests."""
    share(url, 100)


def roll_back(url):
    """Return to the model of the repository. Requests that the new version has are answered."""
    with Client(url) as client:
        client.request("POST", f"{CONTROL}/load", {})
