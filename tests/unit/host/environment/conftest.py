"""Archives as tests need them."""

import io
import re
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

Entries = list[tuple[str, object]]


def header(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644, size: int = 0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, target, mode, size
    return info


def tar_of(*entries: tuple[tarfile.TarInfo, bytes], **options) -> bytes:
    """A plain tar of headers and contents, whatever nonsense they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **{"format": tarfile.GNU_FORMAT, **options}) as tar:
        for info, content in entries:
            if content:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def files(**contents: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Regular files; ``__`` in a name is a slash."""
    return [(header(name.replace("__", "/")), content) for name, content in contents.items()]


def needing_much(binary: Path) -> tuple[bytes, tuple[int, int]]:
    """A copy of a binary that needs a glibc of the far future, and which."""
    content = binary.read_bytes()
    name = re.search(rb"\0GLIBC_2\.([\d.]{2,3})(?=\0)", content)
    if name is None:
        pytest.skip("the interpreter of this machine needs no glibc")
    nines = b"9" * len(name[1])
    return content.replace(name[0], b"\0GLIBC_2." + nines), (2, int(nines))


@pytest.fixture
def archive(tmp_path) -> Callable[[bytes], Path]:
    def write(content: bytes, name: str = "env.tar") -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


@pytest.fixture
def never() -> threading.Event:
    return threading.Event()
