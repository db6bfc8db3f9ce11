"""What binaries say about themselves, on this machine's own interpreter and on altered copies of it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from pybackend.environment.elf import read_binary
from pybackend.environment.manifest import host_libc

OWN = Path(sys.executable).resolve()


def test_this_interpreter_is_for_this_machine():
    binary = read_binary(OWN)
    assert binary.machine == platform.machine()
    assert Path(binary.loader).exists()
    if host_libc():
        assert (2, 0) <= binary.glibc <= tuple(int(part) for part in host_libc().split()[1].split(".")[:2])


def altered(tmp_path, offset, replacement):
    content = bytearray(OWN.read_bytes())
    content[offset : offset + len(replacement)] = replacement
    copy = tmp_path / "python"
    copy.write_bytes(content)
    return copy


def test_another_processor_is_recognised(tmp_path):
    assert read_binary(altered(tmp_path, 18, (183).to_bytes(2, "little"))).machine == "aarch64"
    assert read_binary(altered(tmp_path, 18, (999).to_bytes(2, "little"))).machine == "processor number 999"


@pytest.mark.parametrize(
    ("offset", "replacement"),
    [(32, b"\xff" * 8), (54, b"\xff" * 4), (28, b"\xff" * 24)],
    ids=["table", "count", "all"],
)
def test_damaged_headers_harm_nobody(offset, replacement, tmp_path):
    read_binary(altered(tmp_path, offset, replacement))


@pytest.mark.parametrize(
    "content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01"], ids=["empty", "script", "magic", "short"]
)
def test_what_is_no_binary_is_none(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    assert read_binary(tmp_path / "file") is None


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (b"\0libpython3.12.so.1.0\0", True),
        (b"\0libpython3.12.so.1.0\0$ORIGIN/../lib\0", False),
        (b"", False),
    ],
    ids=["shared", "relative", "static"],
)
def test_a_program_that_does_not_find_its_library_by_itself_is_recognised(extra, expected, tmp_path):
    content = OWN.read_bytes().replace(b"libpython3", b"libother39").replace(b"$ORIGIN", b"$other_")
    (tmp_path / "python").write_bytes(content + extra)
    assert read_binary(tmp_path / "python").lacks_way is expected
