"""Compiling every module before it is packed.

An environment is read-only to the models in it: what is not compiled here is compiled again by every process. Files that are
not checked against their source (PEP 552) stay valid whatever happens to times on the way.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from pybackend.pack.errors import PackError, no_space, says_no_space
from pybackend.pack.progress import Advance

_CHUNK_BYTES = 1 << 21
"""Source for one process: chunks do not depend on the number of cores, so that neither do the compiled files. With half as much,
interpreters that start cost a fifth of the time; with twice as much, two cores do not end together."""

_SCRIPT = r"""
import os, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
parent = os.getppid()
for line in sys.stdin.buffer.read().split(b"\0"):
    if os.getppid() != parent:  # killed: nobody waits for this any more
        break
    source, target, display = map(os.fsdecode, line.split(b"\n"))
    try:
        py_compile.compile(source, target, display, doraise=True, quiet=1, invalidation_mode=mode)
    except (py_compile.PyCompileError, ValueError, RecursionError, OverflowError, MemoryError):
        pass  # templates and code for other versions: it could not be imported either
"""


@dataclass(frozen=True)
class SourceFile:
    """A module to compile.

    Attributes:
        path: of its source.
        name: of the source within the environment.
    """

    path: Path
    name: str


def compiled_name(name: str, cache_tag: str) -> str:
    """Where Python looks for the compiled file of a module."""
    directory, _, file = name.rpartition("/")
    return f"{directory}/__pycache__/{file.removesuffix('.py')}.{cache_tag}.pyc"


def compile_modules(
    python: Path, cache_tag: str, sources: Iterable[SourceFile], target: Path, threads: int, advance: Advance
) -> dict[str, Path]:
    """Compile modules into a directory of their own; returns the compiled files by their name within the environment.

    Args:
        python: the interpreter of the environment.
        cache_tag: of that interpreter, such as ``cpython-312``.
        sources: what to compile; what is no valid source is left out.
        target: an empty directory.
        threads: processes at the same time.
        advance: is told how many chunks are done.

    Raises:
        PackError: the interpreter does not do it.
    """
    names: dict[str, Path] = {}
    chunks: list[bytes] = []
    for chunk in _chunks(sources):
        lines = []
        for source in chunk:
            name = compiled_name(source.name, cache_tag)
            names[name] = target / name
            lines.append(b"\n".join(os.fsencode(part) for part in (source.path, names[name], source.name)))
        chunks.append(b"\0".join(lines))
    for directory in {path.parent for path in names.values()}:
        directory.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="compile") as pool:
        running = [pool.submit(_compile, python, chunk, target) for chunk in chunks]
        try:
            for done, future in enumerate(as_completed(running), 1):
                future.result()
                advance(done, len(chunks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: path for name, path in names.items() if path.exists()}


def _chunks(sources: Iterable[SourceFile]) -> Iterator[list[SourceFile]]:
    chunk: list[SourceFile] = []
    size = 0
    for source in sorted(sources, key=lambda source: source.name):
        if "\n" in source.name or "\0" in source.name:
            continue
        chunk.append(source)
        size += source.path.stat().st_size
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _compile(python: Path, chunk: bytes, target: Path) -> None:
    done = subprocess.run(
        [python, "-s", "-S", "-B", "-W", "ignore", "-c", _SCRIPT],
        input=chunk,
        capture_output=True,
        check=False,
        cwd=target,
        # Sets of constants are in another order with another seed. (-I would ignore this too.)
        env={"PYTHONHASHSEED": "0", "PATH": os.defpath},
    )
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip()
        if says_no_space(complaint):
            raise no_space("compile modules", target)
        raise PackError(f"{python} cannot compile modules (status {done.returncode}): {complaint[-500:]}")
