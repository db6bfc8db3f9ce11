"""Zygotes of every interpreter: they get ready with one thread and without a warning, and fork what can be heard."""

import json
import subprocess
import sys

import pytest

from tests.floor import environments

FORKS = """
import asyncio, json, sys
from pathlib import Path
from pybackend_tools.doctor.trial import greeting
from pybackend.environment.environment import Environment
from pybackend.process.bundle import stage_bundle
from pybackend.process.stub_process import AdoptedProcess
from pybackend.process.launcher import StubLauncher
from pybackend.process.orphans import Orphans

async def main():
    orphans = Orphans()
    launcher = StubLauncher(stage_bundle(), Environment(Path(sys.argv[1]), sys.argv[1]), orphans, forks=True)
    said = []
    for _ in range(3):
        stub = await launcher.start()
        assert isinstance(stub.process, AdoptedProcess)
        hello = await greeting(stub)
        said.append([hello.python, hello.pid])
    launcher.close()
    orphans.sweep_all()
    return said

print(json.dumps(asyncio.run(main())))
"""
"""In a process of its own, because it adopts orphans."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", environments.rows(), ids=str)
@pytest.mark.thorough
def test_every_interpreter_forks(row):
    try:
        python = environments.python_of(row)
    except environments.Unavailable as reason:
        pytest.skip(f"{row} was not run: {reason}")
    done = subprocess.run([sys.executable, "-c", FORKS, python], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert {version.rpartition(".")[0] for version, _ in said} == {f"3.{row.minor}"}
    assert len({pid for _, pid in said}) == 3
