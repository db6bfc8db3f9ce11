"""Compiles every module before packing.

An environment is read-only for its models, so every process would compile missing files again. Unchecked hash-based
files (PEP 552) stay valid even if timestamps change in transit.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from pybackend_tools.pack.errors import PackError, told_output_error
from pybackend_tools.pack.options import Advance

_CHUNK_BYTES = 1 << 20
"""Source bytes per chunk. Chunks do not depend on the number of cores, and neither do the compiled files."""

_SCRIPT = r"""
# py_compile and importlib.util would do this, but they and all that they import are not compiled yet.
import _frozen_importlib_external, _imp, marshal, sys

MAGIC = _frozen_importlib_external.MAGIC_NUMBER
KEY, UNCHECKED_HASH = int.from_bytes(MAGIC, "little"), 1

for line in sys.stdin.buffer.read().split(b"\0"):
    source, target, display = line.split(b"\n")
    with open(source, "rb") as file:
        text = file.read()
    try:
        compiled = marshal.dumps(compile(text, display.decode("utf-8", "surrogateescape"), "exec", dont_inherit=True))
    except Exception:
        continue  # templates and code for other versions: importing them would fail too
    with open(target, "wb") as file:
        file.write(MAGIC + UNCHECKED_HASH.to_bytes(4, "little") + _imp.source_hash(KEY, text) + compiled)
"""


@dataclass(frozen=True)
class SourceFile:
    """A module to compile; ``name`` is its path within the environment."""

    path: Path
    name: str


def compiled_name(name: str, cache_tag: str) -> str:
    """The path at which Python expects the compiled file of a module."""
    directory, _, file = name.rpartition("/")
    return f"{directory}/__pycache__/{file.removesuffix('.py')}.{cache_tag}.pyc"


def compile_modules(
    python: Path, cache_tag: str, sources: Iterable[SourceFile], target: Path, threads: int, advance: Advance
) -> dict[str, Path]:
    """Compile modules into a separate directory; returns the compiled files by their name within the environment.

    ``sources``: invalid ones are skipped. ``target``: an empty directory. ``advance``: called with the number of
    finished chunks.
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
        processes: list[subprocess.Popen[bytes]] = []
        running = [pool.submit(_compile, python, chunk, target, processes) for chunk in chunks]
        try:
            for done, future in enumerate(as_completed(running), 1):
                future.result()
                advance(done, len(chunks))
        except BaseException:  # interrupted, too: the compiling processes must not go on alone
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
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


def _compile(python: Path, chunk: bytes, target: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """Compile a chunk in a new process, added to ``processes``: earlier compilations would influence the output."""
    process = subprocess.Popen(
        [python, "-s", "-S", "-B", "-W", "ignore", "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=target,
        # The hash seed determines the order of set constants. (-I would ignore this variable.)
        env={"PYTHONHASHSEED": "0", "PATH": os.defpath},
    )
    processes.append(process)
    complaint = process.communicate(chunk)[1].decode(errors="replace").strip()
    if process.returncode:
        raise told_output_error(complaint, "compile modules", target) or PackError(
            f"{python} cannot compile modules (status {process.returncode}): {complaint[-500:] or 'no error message'}"
        )
