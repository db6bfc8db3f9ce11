"""Serves the models of add_sub by the command `tritonserver`, as scripts written for Triton do, and runs the client of
add_sub."""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import tritonclient.http as httpclient

ADD_SUB = Path(__file__).resolve().parents[1] / "add_sub"
COMMAND = [
    Path(sys.executable).with_name("tritonserver"),
    *(f"--model-repository={ADD_SUB / 'model_repository'}", "--http-address", "127.0.0.1", "--http-port", "0"),
    *("--allow-grpc=false", "--allow-metrics=false"),
]
READY_S = 50


def wait_until_ready(url):
    end = time.monotonic() + READY_S
    with httpclient.InferenceServerClient(url) as client:
        while not client.is_server_ready():
            if time.monotonic() > end:
                raise TimeoutError(f"not ready after {READY_S} s")
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="ignored: this program starts a server of its own")
    parser.parse_args()

    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            # Port 0 is any free one; the server's log names it.
            listens = (re.search(r"Started HTTPService at (\S+:\d+)", line) for line in server.stdout)
            url = next(found[1] for found in listens if found)
            wait_until_ready(url)
            subprocess.run([sys.executable, ADD_SUB / "client.py", "--url", url], check=True)
        finally:
            server.terminate()
    assert server.returncode == 0, server.returncode
    print("PASS: tritonserver")


if __name__ == "__main__":
    main()
