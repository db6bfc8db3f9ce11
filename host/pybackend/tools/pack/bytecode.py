"""Compiles every module before packing.

An environment is read-only for its models, so every process would compile missing files again. Unchecked hash-based
files (PEP 552) stay valid even if timestamps change in transit.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Self

from pybackend.tools.pack.errors import PackError, no_space, says_no_space
from pybackend.tools.pack.options import Advance

_CHUNK_BYTES = 1 << 19
"""Source bytes per chunk. Chunks do not depend on the number of cores, and neither do the compiled files."""

_SCRIPT = r"""
import importlib.util, marshal, os, sys

# py_compile would work, but imports four times as much uncompiled code: a tenth of the work for numpy's environment.
UNCHECKED_HASH = 1
HEADER = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH.to_bytes(4, "little")
own = os.getpid()


def compile_all(chunk):
    for line in chunk.split(b"\0"):
        if os.getppid() != own:  # the parent was killed
            break
        source, target, display = map(os.fsdecode, line.split(b"\n"))
        with open(source, "rb") as file:
            text = file.read()
        try:
            code = compile(text, display, "exec", dont_inherit=True)
            compiled = marshal.dumps(code)
        except Exception:
            continue  # templates and code for other versions: importing them would fail too
        with open(target, "wb") as file:
            file.write(HEADER + importlib.util.source_hash(text) + compiled)


while True:
    size = sys.stdin.buffer.read(8)
    if not size:
        break
    chunk = sys.stdin.buffer.read(int(size, 16))
    # Earlier compilations influence the output, so each chunk gets a fresh process.
    child = os.fork()
    if child == 0:
        status = 1
        try:
            compile_all(chunk)
            status = 0
        except OSError as error:
            sys.stderr.write(str(error))
            sys.stderr.flush()
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        break
    os.write(1, b".")
"""


@dataclass(frozen=True)
class SourceFile:
    """A module to compile.

    Attributes:
        name: the source's name within the environment.
    """

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

    Raises PackError if the interpreter failed.

    Args:
        cache_tag: the interpreter's, such as ``cpython-312``.
        sources: modules to compile; invalid sources are skipped.
        target: an empty directory.
        advance: called with the number of finished chunks.
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
    with ExitStack() as stack, ThreadPoolExecutor(max(1, threads), thread_name_prefix="compile") as pool:
        idle: SimpleQueue[_Compiler] = SimpleQueue()
        compilers = [stack.enter_context(_Compiler(python, target)) for _ in range(min(max(1, threads), len(chunks)))]
        for compiler in compilers:
            idle.put(compiler)
        running = [pool.submit(_compile, chunk, idle) for chunk in chunks]
        try:
            for done, future in enumerate(as_completed(running), 1):
                future.result()
                advance(done, len(chunks))
        except BaseException:
            for compiler in compilers:
                compiler.kill()
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


def _compile(chunk: bytes, idle: SimpleQueue[_Compiler]) -> None:
    compiler = idle.get()
    try:
        compiler.compile(chunk)
    finally:
        idle.put(compiler)


class _Compiler:
    """An interpreter of the environment that compiles chunks of modules."""

    def __init__(self, python: Path, target: Path) -> None:
        self._python = python
        self._target = target
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._python, "-s", "-S", "-B", "-W", "ignore", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            bufsize=0,
            cwd=self._target,
            # The hash seed determines the order of set constants. (-I would ignore this variable.)
            env={"PYTHONHASHSEED": "0", "PATH": os.defpath},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._complaints.close()

    def kill(self) -> None:
        """Kill the process; a waiting caller gets an error."""
        self._process.kill()

    def compile(self, chunk: bytes) -> None:
        """Compile the modules of one chunk. Raises PackError if the interpreter failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            for part in (b"%08x" % len(chunk), chunk):
                _write_all(self._process.stdin, part)
            answered = self._process.stdout.read(1)
        except BrokenPipeError:
            answered = b""
        if not answered:
            raise self._error()

    def _error(self) -> PackError:
        status = self._process.wait()
        self._complaints.seek(0)
        complaint = self._complaints.read().decode(errors="replace").strip()
        if says_no_space(complaint):
            return no_space("compile modules", self._target)
        return PackError(
            f"{self._python} cannot compile modules (status {status}): {complaint[-500:] or 'no error message'}"
        )


def _write_all(pipe: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]
