"""What is seen of an environment's Python without running it, and what is refused before anything runs."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pybackend.environment.elf import read_binary
from pybackend.environment.interpreter import check_usable, find_interpreter
from pybackend.environment.manifest import EnvironmentManifest, PackedPackage, host_libc, host_platform
from pybackend.errors import ModelEnvironmentError
from tests.support.environments import copy_of, foreign_minors, tree
from tests.unit.host.environment.conftest import needing_much

OWN = Path(sys.executable).resolve()
HOST = host_platform()


def environment(tmp_path, program=OWN, version="3.12", numpy="2.1.0", name="python3"):
    """The files that are looked at, and no others."""
    prefix = tmp_path / "env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / name).write_bytes(program.read_bytes() if isinstance(program, Path) else program)
    (prefix / "bin" / name).chmod(0o755)
    (prefix / "bin" / "python").symlink_to(name)
    libraries = prefix / "lib" / f"python{version}" / "site-packages"
    libraries.mkdir(parents=True)
    if numpy:
        (libraries / "numpy").mkdir()
        (libraries / f"numpy-{numpy}.dist-info").mkdir()
    return prefix


def refusal(prefix):
    with pytest.raises(ModelEnvironmentError) as caught:
        check_usable(find_interpreter(prefix, "the environment X"), "the environment X")
    return caught.value.message


@pytest.mark.parametrize("minor", foreign_minors(), ids=lambda minor: f"cpython3.{minor}")
def test_real_environments_are_described_as_their_python_does(minor):
    prefix = tree(minor, numpy_major=1 if minor < 12 else 2)
    interpreter = find_interpreter(prefix, "x")
    check_usable(interpreter, "x")
    code = "import sys, numpy; print('%d.%d' % sys.version_info[:2], numpy.__version__, sys.prefix)"
    run = subprocess.run([interpreter.python, "-I", "-B", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [interpreter.version, interpreter.numpy, str(prefix)]
    assert interpreter.describe() == f"Python {interpreter.version}, numpy {interpreter.numpy}"
    assert PackedPackage("numpy", interpreter.numpy) in interpreter.packages()


@pytest.mark.spec("pb-V06")
@pytest.mark.parametrize("options", [[], ["--system-site-packages"]], ids=["own", "shared"])
def test_virtual_environments_are_described(options, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, tmp_path / "venv"], check=True)
    interpreter = find_interpreter(tmp_path / "venv", "x")
    assert interpreter.version == platform.python_version()
    assert interpreter.python == tmp_path / "venv" / "bin" / "python"
    if options:
        check_usable(interpreter, "x")  # whether it has numpy, its Python will tell
    else:
        assert "the environment X has no numpy for its Python" in refusal(tmp_path / "venv")


def test_the_manifest_knows_more(tmp_path):
    prefix = environment(tmp_path)
    packages = (PackedPackage("numpy", "2.1.0", "pypi"),)
    EnvironmentManifest(HOST, "3.12.9", free_threaded=True, packages=packages).write(prefix)
    interpreter = find_interpreter(prefix, "x")
    assert interpreter.describe() == "Python 3.12.9 (free-threaded), numpy 2.1.0"
    assert interpreter.packages() == list(packages)


def test_conda_says_what_it_has_installed(tmp_path):
    prefix = environment(tmp_path)
    (prefix / "conda-meta").mkdir()
    for name in ("python-3.12.1-h1_0.json", "ca-certificates-2024.1-0.json", "history"):
        (prefix / "conda-meta" / name).write_text("{}")
    (prefix / "include" / "python3.12").mkdir(parents=True)
    (prefix / "include" / "python3.12" / "patchlevel.h").write_text('/* */\n#define PY_VERSION      "3.12.1"\n')
    interpreter = find_interpreter(prefix, "x")
    assert interpreter.version == "3.12.1"
    assert [package.name for package in interpreter.packages()] == ["ca-certificates", "numpy", "python"]


def test_numpy_may_be_a_plain_folder(tmp_path):
    prefix = environment(tmp_path, numpy="")
    numpy = prefix / "lib" / "python3.12" / "site-packages" / "numpy"
    numpy.mkdir()
    (numpy / "version.py").write_text('short_version = "1.26.4"\nversion = "1.26.4"\n')
    assert find_interpreter(prefix, "x").numpy == "1.26.4"


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize("number", [(183, "aarch64"), (21, "ppc64le")], ids=["arm", "power"])
def test_another_processor_is_refused(number, tmp_path):
    program = bytearray(OWN.read_bytes())
    program[18:20] = number[0].to_bytes(2, "little")
    expected = f"the environment X is for linux-{number[1]}, this host is {HOST}: pack it for {HOST}"
    assert refusal(environment(tmp_path, bytes(program))) == expected


@pytest.mark.spec("pb-V05")
def test_another_processor_by_the_manifest_is_refused(tmp_path):
    prefix = environment(tmp_path, b"#!/bin/sh\n")
    EnvironmentManifest("linux-riscv64", "3.12.1").write(prefix)
    assert f"is for linux-riscv64, this host is {HOST}" in refusal(prefix)


@pytest.mark.spec("pb-V05")
def test_another_c_library_is_refused(tmp_path):
    loader = read_binary(OWN).loader.encode()
    program = OWN.read_bytes().replace(loader, b"/lib/ld-musl.so.1".ljust(len(loader), b"\0"))
    message = refusal(environment(tmp_path, program))
    assert "was built for another C library: its Python needs /lib/ld-musl.so.1, which this host" in message


@pytest.mark.spec("pb-V05")
@pytest.mark.skipif(not host_libc().startswith("glibc"), reason="this host has another C library than glibc")
@pytest.mark.parametrize("place", ["python", "library", "numpy", "manifest"])
def test_a_newer_c_library_is_refused_with_both_versions(place, tmp_path):
    prefix = environment(tmp_path)
    needs_much, version = needing_much(OWN)
    if place == "python":
        (prefix / "bin" / "python3").write_bytes(needs_much)
    elif place == "library":
        (prefix / "lib" / "libpython3.12.so.1.0").write_bytes(needs_much)
    elif place == "numpy":
        core = prefix / "lib" / "python3.12" / "site-packages" / "numpy" / "_core"
        core.mkdir()
        (core / "_multiarray_umath.cpython-312-x86_64-linux-gnu.so").write_bytes(needs_much)
    else:
        version = (2, 999)
        EnvironmentManifest(HOST, "3.12.1", "glibc 2.999").write(prefix)
    assert f"the environment X needs glibc 2.{version[1]}, this host has {host_libc()}: pack it on a system" in refusal(
        prefix
    )


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize("version", ["3.7", "3.6"])
def test_an_old_python_is_refused(version, tmp_path):
    expected = f"the environment X has Python {version}, models of this host run on CPython 3.8 and newer"
    assert refusal(environment(tmp_path, version=version)) == expected


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize("name", ["pypy3.10", "graalpy"])
def test_another_python_is_refused(name, tmp_path):
    assert "models of this host run on CPython 3.8 and newer" in refusal(environment(tmp_path, name=name))


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize(
    ("numpy", "expected"),
    [
        (
            "",
            "the environment X has no numpy for its Python 3.12: every environment needs numpy >= 1.19, the server's own ",
        ),
        ("1.18.5", "the environment X has numpy 1.18.5, every environment needs numpy >= 1.19"),
    ],
    ids=["none", "old"],
)
def test_an_environment_without_a_good_numpy_is_refused(numpy, expected, tmp_path):
    assert refusal(environment(tmp_path, numpy=numpy)).startswith(expected)


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize("left", ["_virtualenv.pth", "distutils-precedence.pth", None])
def test_an_environment_with_nothing_installed_is_refused(left, tmp_path):
    """As `uv venv` makes one; packed, it has not even the directory for packages."""
    prefix = environment(tmp_path, numpy="")
    libraries = prefix / "lib" / "python3.12" / "site-packages"
    if left:
        (libraries / left).write_text("import _virtualenv")
    else:
        libraries.rmdir()
    assert refusal(prefix).startswith("the environment X has no numpy for its Python 3.12")


def test_numpy_may_come_by_a_path_file(tmp_path):
    prefix = environment(tmp_path, numpy="")
    (prefix / "lib" / "python3.12" / "site-packages" / "more.pth").write_text("/elsewhere\n")
    check_usable(find_interpreter(prefix, "x"), "x")


def test_a_script_may_start_it(tmp_path):
    check_usable(find_interpreter(environment(tmp_path, b"#!/bin/sh\nexec python3\n"), "x"), "x")


@pytest.mark.spec("pb-V05")
def test_an_environment_without_python_is_refused(tmp_path):
    prefix = environment(tmp_path)
    (prefix / "bin" / "python3").chmod(0o644)
    assert refusal(prefix).endswith("python is not executable")
    (prefix / "bin" / "python3").unlink()
    assert refusal(prefix).endswith(f"{prefix}/bin/python leads to python3, which is missing")
    (prefix / "bin" / "python").unlink()
    expected = f"the environment X has no Python that this host could start: there is no {prefix}/bin/python"
    assert refusal(prefix) == expected


def test_the_library_of_the_program_counts(tmp_path):
    """Upgrades leave the directories of older versions behind."""
    prefix = environment(tmp_path, version="3.9", name="python3.9")
    (prefix / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    assert find_interpreter(prefix, "x").version == "3.9"


def test_a_spoilt_copy_harms_no_original(tmp_path):
    """The tests' own trees are shared: what a test spoils must be a file of its own."""
    if not foreign_minors():
        pytest.skip("this machine has no second CPython that could be packed")
    copy = copy_of(None, tmp_path / "copy")
    assert find_interpreter(copy, "x").version == find_interpreter(tree(), "x").version
