"""Which CPython an environment is made of."""

import os
import platform
import stat
import sys

import pytest

from pybackend_tools.pack.errors import SpecificationError
from pybackend_tools.pack.interpreter import find_interpreter, probe
from tests.floor.environments import interpreters

OWN = ".".join(map(str, sys.version_info[:2]))


def test_own_interpreter_is_the_default():
    assert find_interpreter(None).version == platform.python_version()


@pytest.mark.parametrize("minor", sorted(interpreters()), ids=lambda minor: f"3.{minor}")
def test_every_interpreter_of_this_machine_is_found_by_its_version(minor):
    found = find_interpreter(f"3.{minor}")
    assert found.minor == f"3.{minor}"
    assert (found.standard_library / "os.py").is_file()
    assert not found.executable.is_symlink()
    assert find_interpreter(found.version).version == found.version


def test_program_directory_and_virtual_environment_mean_their_interpreter():
    base = find_interpreter(None)
    assert find_interpreter(sys.executable) == base
    assert find_interpreter(os.path.join(sys.prefix, "bin", "python")) == base
    assert find_interpreter(sys.prefix) == base


@pytest.mark.parametrize("wanted", ["3.98.1", "3.99"])
def test_versions_that_are_not_here(wanted):
    with pytest.raises(
        SpecificationError, match=rf"no CPython {wanted} on this machine. Found: 3\.\d+.*uv python install {wanted}"
    ):
        find_interpreter(wanted)


@pytest.mark.parametrize("wanted", ["2", "2.7", "3.1", "3.7", "3.7.16"])
def test_versions_in_which_no_model_runs(wanted):
    with pytest.raises(SpecificationError, match=rf"--python {wanted}: models run in 3\.8 and newer"):
        find_interpreter(wanted)


def test_what_a_project_requires():
    with pytest.raises(
        SpecificationError, match=rf"--python {OWN} is CPython {OWN}.*, and the project requires >=3\.90"
    ):
        find_interpreter(OWN, ">=3.90")
    assert find_interpreter(None, f">={OWN},<4").version == platform.python_version()
    assert find_interpreter(OWN, f"=={OWN}.*").minor == OWN
    with pytest.raises(SpecificationError, match=r"no CPython >=3\.90 on this machine"):
        find_interpreter(None, ">=3.90")
    with pytest.raises(SpecificationError, match=r"the project requires <3\.8"):
        find_interpreter(sys.executable, "<3.8")
    with pytest.raises(SpecificationError, match="requires-python = 'newest' cannot be read"):
        find_interpreter(None, "newest")


def test_paths_that_are_no_interpreter(tmp_path):
    with pytest.raises(SpecificationError, match=r"does not exist; write a version such as 3\.12, or a path"):
        find_interpreter(str(tmp_path / "python"))
    with pytest.raises(SpecificationError, match="does not exist"):
        find_interpreter(str(tmp_path))
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho \'{"implementation": "pypy"}\'\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(SpecificationError, match="is not a working CPython"):
        find_interpreter(str(program))
    assert probe("/bin/true") is None
