"""Environments that tests have packed by ``pybackend pack``, kept for later runs; and a look into them."""

import functools
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.floor.environments import Unavailable, interpreters
from tests.support.conda_channel import channel_minors, conda_channel, kept
from tests.support.warm_start import run_command

PACK_DEADLINE_S = 300
"""Packing compiles a whole standard library: slow on a busy machine."""


def run_pack(
    *arguments: str | Path, deadline_s: float = PACK_DEADLINE_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``pybackend pack`` to its end; whatever it says, it never shows a traceback of its own."""
    done = run_command("pack", *map(str, arguments), timeout=deadline_s, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def skip_without_channel() -> Path:
    """The channel; the test is skipped, with the reason, where it cannot be built."""
    try:
        return conda_channel()
    except Unavailable as error:
        pytest.skip(str(error))


def second_minor() -> int:
    """The minor version of a CPython other than the host's own; the test is skipped where there is none."""
    others = [minor for minor in channel_minors() if minor != sys.version_info.minor]
    if not others:
        pytest.skip("there is only one CPython on this machine")
    return others[0]


def conda_environment(minor: int) -> Path:
    """An archive with CPython 3.``minor`` and numpy, from the channel."""
    channel = skip_without_channel()

    def make(directory: Path) -> None:
        text = f"channels: [{channel}]\ndependencies: [python=3.{minor}, numpy, awkward, greeter]\nvariables: {{PACKED_BY: conda}}\n"
        (directory / "environment.yml").write_text(text)
        done = run_pack(directory / "environment.yml", "-o", directory / "env.tar.gz")
        assert done.returncode == 0, done.stderr

    return kept(f"conda-3.{minor}", [channel.name, _sources()], make) / "env.tar.gz"


def wheel_environment(minor: int) -> Path:
    """An archive with CPython 3.``minor`` and numpy, from wheels; the test is skipped where they cannot be had."""
    python = interpreters()[minor]

    def make(directory: Path) -> None:
        (directory / "requirements.txt").write_text("numpy\n")
        done = run_pack(directory / "requirements.txt", "-o", directory / "env.tar.gz", "--python", python)
        if done.returncode == 4:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr

    return kept(f"wheels-3.{minor}", [python, _sources()], make) / "env.tar.gz"


@functools.cache
def _sources() -> str:
    """What has packed them: other code may pack something else."""
    import hashlib

    import pybackend_tools.pack

    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(pybackend_tools.pack.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def unpacked(archive: Path, directory: Path) -> Path:
    """The archive's content, as tar leaves it."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "xf", archive, "-C", directory], check=True)
    return directory


def manifest(archive: Path) -> dict[str, Any]:
    """What an archive says about itself; it is the first file."""
    with tarfile.open(archive) as tar:
        first = tar.next()
        assert first is not None
        assert first.name == "pybackend-environment.json"
        file = tar.extractfile(first)
        assert file is not None
        return json.load(file)


def ask(prefix: Path, code: str) -> str:
    """What an environment's interpreter prints."""
    python = prefix / "bin" / "python"
    done = subprocess.run(
        [python, "-I", "-B", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.defpath},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
