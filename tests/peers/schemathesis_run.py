"""schemathesis on the server's OpenAPI document: requests that fit it and requests that do not, to every route."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.peers.environments import environment
from tests.support.server import serving

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = os.environ.get("SCHEMATHESIS_SECONDS", "120")

HOOKS = '''
import random

import schemathesis

MODELS = ["scale", "count_up", "add_sub", "nobody", "a b", "%2e%2e"]
SPECIFIED = ("failed to parse the request JSON buffer", "Unable to parse", "Failed to parse 'data' field", "Expected JSON",
             "Failed to process the request(s) for model")


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Mostly models that there are: what nobody serves is refused before anything else is read."""
    if path_parameters and "model_name" in path_parameters:
        path_parameters["model_name"] = random.choice(MODELS)
        if "version" in path_parameters and random.random() < 0.8:
            path_parameters["version"] = "1"
    return path_parameters


@schemathesis.check
def errors_that_are_specified(context, response, case):
    """Statuses of 500 are for malformed JSON and for models that fail; 501 and 503 have a sentence too."""
    if response.status_code < 500:
        return
    message = response.json()["error"]
    assert response.status_code in {501, 503} or message.startswith(SPECIFIED), f"{response.status_code}: {message}"
'''


def main(folder: Path) -> bool:
    """Runs it for ``SCHEMATHESIS_SECONDS``; returns whether every answer was one of the specified ones."""
    binaries = environment("schemathesis", "schemathesis==4.32.5")
    (folder / "schemathesis_hooks.py").write_text(HOOKS)
    models = [EXAMPLES / name / "model_repository" for name in ("clients", "add_sub")]
    with serving(*models) as server:
        done = subprocess.run(
            [binaries / "schemathesis", "run", f"http://{server.url}/openapi.json", f"--url=http://{server.url}",
             f"--max-time={SECONDS}", "--checks=errors_that_are_specified", "--phases=coverage,fuzzing", "--no-color",
             "--warnings=off"],
            cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(folder)}, check=False,
        )  # fmt: skip
        alive = server.get("/v2/health/ready").status == 200
    return done.returncode == 0 and alive
