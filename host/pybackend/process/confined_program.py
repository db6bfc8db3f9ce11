"""Runs a program to its end in the sandbox of a model, for commands that have no server."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pybackend.errors import ModelLoadError
from pybackend.gpus import GpuAccess
from pybackend.process.start import entered_command, terms_of
from pybackend.sandbox.model_sandbox import ModelSandbox

_LEAST_DESCRIPTOR = 3


def run_confined(
    model: ModelSandbox,
    bundle: str,
    program: Sequence[str],
    variables: Mapping[str, str],
    gpu: GpuAccess,
    output: int | None = None,
) -> int:
    """Run a program, clean up after it, and return its exit status, 128 + N if signal N has ended it.

    The program keeps standard output unless ``output`` takes its place, standard error, and the descriptors that this
    process was given to pass on.

    Args:
        model: the sandbox; it is closed.

    Raises:
        ModelLoadError: the program does not exist, or cannot be confined as the sandbox requires.
    """
    try:
        return _run(model, bundle, program, variables, gpu, output)
    finally:
        asyncio.run(model.close())


def _run(
    model: ModelSandbox,
    bundle: str,
    program: Sequence[str],
    variables: Mapping[str, str],
    gpu: GpuAccess,
    output: int | None,
) -> int:
    instance = model.of_instance(0, gpu)
    variables = instance.confinement.environment(variables)
    path = shutil.which(program[0], path=variables.get("PATH", os.defpath))
    if path is None:
        raise ModelLoadError(f"cannot run '{program[0]}': there is no such program in the environment")
    inherited = _passed_on()
    reading, writing = os.pipe()
    with terms_of(instance.confinement, 0) as terms, open(reading, "rb") as said:
        try:
            command = [path, *program[1:]]
            command, variables = entered_command(Path(bundle), command, variables, inherited, terms, writing)
            descriptors = (*inherited, terms.written, writing)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, pass_fds=descriptors, env=variables
            )
        finally:
            os.close(writing)
        try:
            for line in said:  # to the moment at which it becomes the program
                about = json.loads(line)
                if "failure" in about:
                    raise ModelLoadError(about["failure"])
                instance.check(process.pid, about["report"], is_entered=True)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
    return 128 - status if status < 0 else status


def _passed_on() -> list[int]:
    """The descriptors that the caller of this process has opened for the program."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number >= _LEAST_DESCRIPTOR and os.get_inheritable(number):
                found.append(number)
        except OSError:
            continue  # the directory itself, which is closed by now
    return found
