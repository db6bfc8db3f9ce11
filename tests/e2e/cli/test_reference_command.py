"""The command under the reference's name: its spellings, its lines and its exit codes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repositories import IDENTITY, identity_config, write_model

TRITONSERVER = Path(sys.executable).with_name("tritonserver")
FLAGS = (
    "--strict-model-config=false",
    "--http-thread-count=8",
    *(f"--{service}-address=127.0.0.1" for service in ("http", "grpc", "metrics")),
    *(f"--{service}-port=0" for service in ("http", "grpc", "metrics")),
)


def refusal(*flags: str) -> tuple[int, str]:
    ended = subprocess.run([TRITONSERVER, *flags], capture_output=True, text=True, check=False, timeout=120)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.spec("srv-P02", "srv-P04")
def test_refusals_exit_with_1(tmp_path):
    status, text = refusal()
    assert (status, "--model-repository must be specified" in text) == (1, True)
    status, text = refusal(f"--model-store={tmp_path}", "--no-such-flag")
    assert (status, 'Bad option: "--no-such-flag".' in text) == (1, True)
    write_model(tmp_path, "broken", "raise ImportError('on purpose')")
    status, text = refusal(f"--model-store={tmp_path}", *FLAGS)
    assert (status, "error: creating server: Internal - failed to load all models" in text) == (1, True)


@pytest.mark.spec("srv-P05", "srv-P12")
def test_a_start_prints_the_lines_that_scripts_wait_for(tmp_path):
    write_model(tmp_path, "m", IDENTITY, identity_config())
    with subprocess.Popen(
        [TRITONSERVER, f"--model-store={tmp_path}", *FLAGS], stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            began = "".join(lines_until(lines, "successfully loaded 'm'"))
            for service in ("HTTPService", "GRPCInferenceService", "Metrics Service"):
                assert f"Started {service} at 127.0.0.1:" in began
            server.send_signal(signal.SIGTERM)
            assert "Signal (15) received." in "".join(lines)
            assert server.wait(120) == 0
        finally:
            server.kill()


def lines_until(lines, text):
    for line in lines:
        yield line
        if text in line:
            return
