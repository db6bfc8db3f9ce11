"""An environment with numpy: what it takes to pack it, beside its parts alone, and to load a model that runs in it.

The parts are done by other means where there are any: a copy of the same files, uv, Python's own compileall. The
archive is written by what ``pybackend pack`` writes it with, as nothing else here writes it on all cores.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pybackend_tools.pack.contents import file_of
from pybackend_tools.pack.writer import write_archive
from tests.bench import instances, progress, repositories
from tests.bench.plan import Plan
from tests.bench.turns import alternating

PACK, COPY, INSTALL, COMPILE, WRITE = "pybackend pack", "copy", "install", "compile", "write"
PARTS = (COPY, INSTALL, COMPILE, WRITE)
PLAIN, PACKED = "the server's Python", "an archive that is unpacked already"
_REQUIREMENTS = ("numpy", "msgpack")
_TIMEOUT_S = 600


class PackingError(Exception):
    """An environment could not be packed; the text says why."""


@dataclass(frozen=True)
class PackSample:
    """One round of one part, or of the whole.

    Attributes:
        part: one of :data:`PARTS`, or :data:`PACK`.
    """

    part: str
    round: int
    seconds: float


@dataclass(frozen=True)
class EnvironmentLoadSample:
    """One load of a model.

    Attributes:
        environment: what it runs in.
        seconds: as the model sees it that has asked for the load.
    """

    environment: str
    round: int
    seconds: float


def measure_pack(plan: Plan, scratch: Path) -> list[PackSample]:
    """Pack, and do each part alone, in turn.

    Raises:
        PackingError: there is no package index in reach.
    """
    archive, tree = scratch / "env.tar.gz", scratch / "tree"
    _pack(scratch, archive)  # what is downloaded the first time of all is in uv's cache from now on
    _unpack(archive, tree)
    copied = scratch / "copied"
    work: dict[str, Callable[[], None]] = {
        PACK: lambda: _pack(scratch, archive),
        COPY: lambda: _copy(tree, copied),
        INSTALL: lambda: _install(copied),
        COMPILE: lambda: _compile(copied),
        WRITE: lambda: _write(copied, scratch / "written"),
    }
    samples: list[PackSample] = []
    for round_ in range(plan.pack_rounds):
        for part, do in work.items():
            began = time.perf_counter()
            do()
            seconds = time.perf_counter() - began
            progress.show(f"{part}, round {round_ + 1}: {seconds:.2f} s")
            samples.append(PackSample(part, round_, seconds))
    return samples


def measure_loads(plan: Plan, scratch: Path) -> list[EnvironmentLoadSample]:
    """Load models that run in an archive's environment, and others that run in the server's own, in turn.

    Raises:
        PackingError: as for :func:`measure_pack`.
        WrongReplyError: a model could not be loaded.
    """
    archive = scratch / "env.tar.gz"
    _pack(scratch, archive)
    repository = scratch / "models"
    rounds = range(-1, plan.load_rounds)  # the first load of all unpacks
    repositories.write_add_sub(repository, [f"plain_{round_ + 1}" for round_ in rounds])
    parameters = {"EXECUTION_ENV_PATH": str(archive)}
    repositories.write_add_sub(repository, [f"packed_{round_ + 1}" for round_ in rounds], parameters)
    samples: list[EnvironmentLoadSample] = []
    options = [f"--environment-cache-directory={scratch / 'cache'}"]
    with instances.loading_launcher(options).start(repository) as server:
        for round_ in rounds:
            for name, environment in alternating([("plain", PLAIN), ("packed", PACKED)], round_):
                seconds = instances.load(server.port, f"{name}_{round_ + 1}")
                progress.show(f"load in {environment}: {seconds * 1e3:.1f} ms")
                if round_ >= 0:
                    samples.append(EnvironmentLoadSample(environment, round_, seconds))
    return samples


def _pack(scratch: Path, archive: Path) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text("numpy\n", encoding="utf-8")
    work = f"--work-directory={scratch / 'work'}"
    _run([sys.executable, "-m", "pybackend", "pack", str(requirements), "-o", str(archive), work])


def _unpack(archive: Path, tree: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="tar")


def _copy(tree: Path, target: Path) -> None:
    """The interpreter, without packages and without bytecode."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(tree, target, symlinks=True, ignore=shutil.ignore_patterns("site-packages", "__pycache__"))


def _install(tree: Path) -> None:
    from uv import find_uv_bin

    python = str(tree / "bin" / "python")
    flags = ["--quiet", f"--python={python}", "--break-system-packages", "--link-mode=copy"]
    _run([find_uv_bin(), "pip", "install", *flags, *_REQUIREMENTS], {"UV_PYTHON_DOWNLOADS": "never"})


def _compile(tree: Path) -> None:
    python, library = str(tree / "bin" / "python"), str(tree / "lib")
    # Templates and code for other versions do not compile, which compileall tells by its exit status.
    subprocess.run([python, "-m", "compileall", "-q", "-j", "0", library], capture_output=True, check=False)


def _write(tree: Path, archive: Path) -> None:
    found = (file_of(str(path.relative_to(tree)), str(path)) for path in sorted(tree.rglob("*")))
    files = [file for file in found if file is not None]
    with archive.open("wb") as written:
        size_bytes = sum(file.size for file in files)
        write_archive(written, files, "tar.gz", len(os.sched_getaffinity(0)), size_bytes, lambda _done, _total: None)


def _run(command: list[str], variables: dict[str, str] | None = None) -> None:
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise PackingError(f"{Path(command[0]).name} {command[-1]}: {done.stderr.strip()[-600:]}")
