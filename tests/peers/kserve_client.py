"""KServe's own Python client, over REST and gRPC."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.peers.environments import environment
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

PROGRAM = """
import asyncio
import json
import logging
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

logging.disable(logging.CRITICAL)


def request(binary, outputs=None):
    tensor = InferInput("IN", [3], "FP32")
    tensor.set_data_from_numpy(np.array([1, 2, 3], np.float32), binary_data=binary)
    return InferRequest("m", [tensor], request_id="7", request_outputs=outputs)


async def main(base, grpc_url):
    rest, grpc = InferenceRESTClient(RESTConfig(protocol="v2")), InferenceGRPCClient(grpc_url)
    seen = {
        "rest": [
            await rest.is_server_live(base),
            await rest.is_server_ready(base),
            await rest.is_model_ready(base, "m"),
            await rest.is_model_ready(base, "nobody"),
        ],
        "grpc": [await grpc.is_server_live(), await grpc.is_server_ready(), await grpc.is_model_ready("m")],
    }
    wanted = [RequestedOutput("OUT", parameters={"binary_data": True})]
    for binary in (False, True):
        for outputs in (None, wanted):
            answer = await rest.infer(base, request(binary, outputs), model_name="m")
            seen[f"rest {binary} {outputs is not None}"] = answer.outputs[0].as_numpy().tolist()
        answer = await grpc.infer(request(binary))
        seen[f"grpc {binary}"] = answer.outputs[0].as_numpy().tolist()
    await rest.close()
    await grpc.close()
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
"""


def main(folder: Path) -> bool:
    """Calls a server with the client; prints and returns whether every call was answered as it should be."""
    python = environment("kserve", "kserve==0.21.0") / "python"
    program = folder / "kserve_calls.py"
    program.write_text(PROGRAM)
    write_model(folder / "models", "m", IDENTITY, identity_config())
    with serving(folder / "models") as server:
        command = [python, program, f"http://{server.url}", server.grpc_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        print(done.stderr[-2000:])
        return False
    seen = json.loads(done.stdout.splitlines()[-1])
    print("\n".join(f"{name}: {value}" for name, value in seen.items()))
    ready = [seen.pop("rest"), seen.pop("grpc")] == [[True, True, True, False], [True, True, True]]
    return ready and all(values == [1, 2, 3] for values in seen.values())
