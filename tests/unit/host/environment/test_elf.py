"""What binaries say about themselves, on this machine's own interpreter and on altered copies of it."""

import platform
import re
import sys
from pathlib import Path

import pytest

from pybackend.environment.elf import read_binary
from pybackend.environment.manifest import host_libc
from tests.unit.host.environment.conftest import needing_much

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


def test_the_glibc_that_is_needed_is_the_newest_one_named(tmp_path):
    content, version = needing_much(OWN)
    (tmp_path / "python").write_bytes(content)
    assert read_binary(tmp_path / "python").glibc == version


def test_a_program_that_does_not_find_its_library_by_itself_is_recognised(tmp_path):
    """Its table of strings names the library, and no place relative to itself."""
    content = OWN.read_bytes()
    names = re.findall(rb"\0(GLIBC_2\.[\d.]+)(?=\0)", content)
    library = b"libpython3".ljust(len(names[0]), b"x")
    own = content.replace(b"$ORIGIN", b"$other_").replace(b"\0libpython3", b"\0libother39")
    (tmp_path / "static").write_bytes(own)
    (tmp_path / "shared").write_bytes(own.replace(b"\0" + names[0] + b"\0", b"\0" + library + b"\0"))
    assert not read_binary(tmp_path / "static").lacks_relative_rpath
    assert read_binary(tmp_path / "shared").lacks_relative_rpath is (len(names[0]) >= len("libpython3"))
