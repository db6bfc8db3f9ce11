"""The doors of README: each is typed as it is written, with free ports added."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = {
    "python": (sys.executable,),
    "pybackend": (sys.executable, "-m", "pybackend"),
    "tritonserver": (
        sys.executable,
        "-c",
        "import sys; from pybackend.cli import tritonserver; sys.exit(tritonserver())",
    ),
}
FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


def _blocks(title: str) -> list[str]:
    """The code below a heading."""
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def _typed(line: str) -> list[str]:
    """A line of a terminal as arguments."""
    program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
    return [*PROGRAMS.get(program, [program]), *arguments]


@contextmanager
def _serving(command: Sequence[str], until: str, **popen: object) -> Iterator[str]:
    """A server that has said this; its address for HTTP."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen)
    try:
        said = ""
        while until not in said:
            line = server.stdout.readline()
            assert line, said
            said += line
        yield re.search(r"Started HTTPService at ([\d.:]+)", said)[1]
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def _asked(line: str, address: str) -> str:
    """What a line prints that asks a server."""
    if "localhost:8000" in line:
        command = _typed(line.replace("localhost:8000", address))
    else:
        command = [*_typed(line), "--url", address]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_model_file(tmp_path):
    make, serve, ask = _blocks("I have a model file")[0].splitlines()
    program = make.partition(" && ")[2].replace("examples/", f"{ROOT}/examples/")
    subprocess.run(_typed(program), check=True, cwd=tmp_path)
    with _serving([*_typed(serve), *FREE_PORTS], "following changes", cwd=tmp_path) as address:
        assert re.search(r"^PROBABILITIES +FP32 \[1,3\]", _asked(ask, address), re.MULTILINE)


def test_a_function(tmp_path):
    program, ask = _blocks("I have a function")
    ports = {f"PYTRITON_TRITON_CONFIG_{service}_PORT": "0" for service in ("HTTP", "GRPC", "METRICS")}
    command = [sys.executable, "-c", program]
    with _serving(command, "loaded 'double'", cwd=tmp_path, env={**os.environ, **ports}) as address:
        assert json.loads(_asked(ask, address))["y"] == [2, 4, 6]


def test_a_repository():
    serve, ask = _blocks("I have a repository of Triton")[0].splitlines()
    with _serving([*_typed(serve), *FREE_PORTS], "Started Metrics", cwd=ROOT) as address:
        assert "OUTPUT0  FP32 [4]  [11., 22., 33., 44.]" in _asked(ask, address)


def test_it_opens_with_what_it_is_and_two_commands():
    assert re.match(
        r"# pybackend\n\n\*\*A server .*?\n```console\n\$ make demo .*\n\$ make test .*\n```\n", README, re.DOTALL
    )
    assert len(README.splitlines()) <= 80


@pytest.mark.parametrize("program", ["pybackend", "tritonserver"])
def test_the_programs_of_the_doors_are_installed(program):
    assert f'{program} = "pybackend.cli:' in (ROOT / "pyproject.toml").read_text()
