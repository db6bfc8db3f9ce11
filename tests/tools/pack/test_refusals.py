"""What ``pybackend pack`` says when it cannot, and with which status it ends."""

import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from tests.support.conda_channel import write_wheel
from tests.support.packed_environments import run_pack, second_minor
from tests.support.thorough import thorough

pytestmark = pytest.mark.timeout(180)

QUICK = {"UV_HTTP_RETRIES": "0"}


def _refused(status, pattern, *arguments, **options):
    done = run_pack(*arguments, **options)
    assert done.returncode == status, done.stdout + done.stderr
    assert re.search(pattern, done.stderr, re.DOTALL), done.stderr
    assert done.stdout == ""


def _yml(directory, channel, *dependencies, more=""):
    path = directory / "environment.yml"
    path.write_text(f"channels: ['{channel}']\ndependencies: [{', '.join(dependencies)}]\n{more}")
    return path


@pytest.mark.parametrize(
    ("dependencies", "reason"),
    [
        (["python=3.3"], r"No candidates were found for python 3\.3"),
        (["python", "no-such-package"], "No candidates were found for no-such-package"),
        (["python", "greeter=1.0", "wants-old"], r"greeter.*(<1|cannot be installed).*or pack an environment for each"),
        (["python", "numpy=1.2.3"], r"No candidates were found for numpy 1\.2\.3"),
    ],
    ids=["python", "package", "conflict", "version"],
)
def test_unsolvable(dependencies, reason, channel, tmp_path):
    path = _yml(tmp_path, channel, *dependencies)
    _refused(
        3,
        rf"error: no set of packages from file://.* satisfies the request \(python.*\):.*{reason}",
        path,
        cwd=tmp_path,
    )


@pytest.mark.parametrize(
    ("channel", "reason"),
    [
        ("/nowhere/at/all", "there is no channel file:///nowhere/at/all/"),
        (
            "http://127.0.0.1:9/channel",
            "a channel cannot be reached .*Connection refused.*`pybackend pack requirements.txt` needs only pip's index",
        ),
    ],
    ids=["directory", "url"],
)
def test_channel_that_is_not_there(channel, reason, tmp_path):
    _refused(4, reason, _yml(tmp_path, channel, "python"), cwd=tmp_path)


def test_specs_that_are_none(channel, tmp_path):
    _refused(2, "cannot be read", _yml(tmp_path, channel, "python", "'numpy >=!!'"), cwd=tmp_path)
    _refused(2, "lists no python: add it to the dependencies", _yml(tmp_path, channel, "awkward"), cwd=tmp_path)


def test_wheels_that_do_not_exist(python, tmp_path):
    (tmp_path / "wheels").mkdir()
    for line, reason in (
        ("leaf==9", "leaf"),
        ("./none-1.0-py3-none-any.whl", "none-1.0"),
        ("numpy===", "cannot be read"),
        ("leaf >> 3", r"in the request at position \d+: no such comparison operator .*: leaf >> 3$"),
        ("-r more.txt", "cannot be read: .*more.txt.*: No such file"),
    ):
        (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links wheels\n{line}\n")
        status = 3 if line.startswith(("leaf==", "./")) else 2
        _refused(status, reason, tmp_path / "requirements.txt", "--python", python, cwd=tmp_path)


def test_wheels_that_contradict_each_other_or_cannot_be_built(python, tmp_path):
    """Two frameworks that need different versions of a third package, and one that has no wheel."""
    wheels = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        write_wheel(wheels, "leaf", version, {"leaf.py": ""})
    write_wheel(wheels, "oak", "1.0", {"oak.py": ""}, requires=["leaf<2"])
    write_wheel(wheels, "elm", "1.0", {"elm.py": ""}, requires=["leaf>=2"])
    builder = "def build_wheel(*_, **__):\n    for n in range(99): print('compiling', n)\n    raise SystemExit('no compiler here')\n"
    project = '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'
    (tmp_path / "fir-1.0").mkdir()
    (tmp_path / "fir-1.0" / "builder.py").write_text(builder)
    (tmp_path / "fir-1.0" / "pyproject.toml").write_text(project)
    with tarfile.open(wheels / "fir-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "fir-1.0", "fir-1.0")
    for lines, reason in (
        (
            ["oak", "elm"],
            r"^error: no set of packages satisfies the request: Because all versions of elm depend on leaf>=2 and all "
            r"versions of oak depend on leaf<2, [^:\n]* unsatisfiable\. Change one of these requirements, or pack an environment for each: every model can run in its own\n$",
        ),
        (
            ["fir"],
            r"^error: a package has no wheel for this Python, and cannot be built here: Failed to build `fir==1.0`: [^\n]*: "
            r"\(no compiler here\)\n",
        ),
    ):
        (tmp_path / "requirements.txt").write_text("\n".join(["--no-index", "--find-links wheels", *lines]))
        _refused(3, reason, tmp_path / "requirements.txt", "--python", python, "--dry-run", cwd=tmp_path)


def test_extra_that_a_project_does_not_have(python, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "demo"\nversion = "1"\ndependencies = []\n')
    _refused(2, "extra not found: x", tmp_path / "pyproject.toml", "--python", python, "--extra", "x", cwd=tmp_path)


def test_version_of_python_beside_it_that_is_none(tmp_path):
    (tmp_path / "requirements.txt").write_text("leaf\n")
    (tmp_path / ".python-version").write_text("newest\n")
    reason = rf"{tmp_path}/\.python-version newest: newest does not exist; write a version such as 3\.12, or a path"
    _refused(2, reason, tmp_path / "requirements.txt", cwd=tmp_path)


def test_repository_that_does_not_answer(python, tmp_path):
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    (tmp_path / "requirements.txt").write_text("thing @ git+http://127.0.0.1:9/thing.git\n")
    environment = os.environ | {"UV_CACHE_DIR": str(tmp_path / "cache")}
    _refused(4, "an index cannot be reached: .*127.0.0.1", tmp_path / "requirements.txt", "--python", python, cwd=tmp_path,
             env=environment)  # fmt: skip


def test_index_that_does_not_answer(python, tmp_path):
    """The message has a way out where nobody has named another index."""
    nowhere = "http://127.0.0.1:9/simple"
    environment = os.environ | QUICK | {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1"}
    for line, variable, way_out in (
        (f"--index-url {nowhere}", {}, ""),
        ("", {"UV_DEFAULT_INDEX": nowhere}, ""),
        (
            "",
            {"UV_INDEX": nowhere},
            r"\. If packages come from a mirror .* UV_DEFAULT_INDEX=URL .* Settings of pip are not read",
        ),
    ):
        (tmp_path / "requirements.txt").write_text(f"{line}\nleaf\n")
        _refused(
            4, rf"an index cannot be reached: [^\n]*Connection refused \(os error 111\){way_out}\n$",
            tmp_path / "requirements.txt", "--python", python, cwd=tmp_path, env=environment | variable,
        )  # fmt: skip


def test_editable_packages(python, tmp_path):
    (tmp_path / "requirements.txt").write_text("-e .\n")
    _refused(6, "requests an editable package", tmp_path / "requirements.txt", cwd=tmp_path)
    venv = tmp_path / "venv"
    subprocess.run([python / "bin" / "python", "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python3.*/site-packages")
    (packages / "thing-1.0.dist-info").mkdir()
    (packages / "thing-1.0.dist-info" / "direct_url.json").write_text(
        '{"url": "file:///x", "dir_info": {"editable": true}}'
    )
    (packages / "__editable__.thing-1.0.pth").write_text("/x\n")
    _refused(6, rf"{venv} has editable packages \(thing\).*install them without -e", venv, cwd=tmp_path)
    (packages / "__editable__.thing-1.0.pth").unlink()
    (packages / "thing-1.0.dist-info" / "direct_url.json").unlink()
    (packages / "elsewhere.pth").write_text(f"{tmp_path}\n")
    _refused(6, f"elsewhere.pth puts {tmp_path} on the import path", venv, cwd=tmp_path)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    _refused(6, "include-system-site-packages", venv, cwd=tmp_path)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / "bin" / "python").unlink()
    _refused(6, "the interpreter of .* does not start", venv, cwd=tmp_path)


@pytest.mark.parametrize("flags", [("--python", "3.12"), ("--extra", "x"), ("--extra", "x", "--dry-run")])
def test_environment_that_is_there_is_not_asked_to_be_another(flags, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    reason = f"{tmp_path}/venv is packed unchanged: {flags[0]} is for files that list packages"
    _refused(2, reason, tmp_path / "venv", *flags, cwd=tmp_path)


def test_conda_environments_that_are_none(tmp_path):
    (tmp_path / "prefix" / "conda-meta").mkdir(parents=True)
    _refused(6, "has no bin/python", tmp_path / "prefix", cwd=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("requirements.txt", "--upgrade"),
        ("none.yml",),
        ("requirements.txt", "--format", "zip"),
        ("requirements.txt", "-o", "env.zip"),
        ("requirements.txt", "-o", "env.tar.gz", "--format", "zst"),
        ("requirements.txt", "--python", "3.7"),
        ("requirements.txt", "--python", "/bin/true"),
        ("requirements.txt", "--extra", "x"),
        ("requirements.txt", "--lock", "none/env.lock"),
        ("requirements.txt", "--lock", "requirements.txt"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, tuple) else None,
)
def test_wrong_command_lines(arguments, tmp_path, snapshot):
    (tmp_path / "requirements.txt").write_text("leaf\n")
    done = run_pack(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].partition(" (choose from")[0] == snapshot  # the rest is CPython's
    assert [path.name for path in tmp_path.iterdir()] == ["requirements.txt"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "requirements.txt").write_text("leaf\n")
    for target in ("/proc/env.tar.gz", tmp_path / "none" / "env.tar.gz"):
        _refused(5, "cannot write", tmp_path / "requirements.txt", "-o", target)
    (tmp_path / "file").touch()
    _refused(
        5,
        "cannot assemble the environment",
        tmp_path / "requirements.txt",
        "--work-directory",
        tmp_path / "file" / "x",
        cwd=tmp_path,
    )


def test_without_its_packages_it_says_what_to_install(tmp_path):
    """Run by an interpreter that sees pybackend, and none of the packages that pack."""
    (tmp_path / "requirements.txt").write_text("leaf\n")
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in {'rattler', 'uv'} else find(name, *rest)\n"
        "from pybackend.cli import main\n"
        "sys.exit(main(['pack', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "requirements.txt"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 7
    assert f"Install them with `{sys.executable} -m pip install py-rattler uv`" in done.stderr


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        ("3m", "-o {0}/env.tar.gz"),
        *thorough(("3m", "-o env.tar.gz --work-directory {0}"), ("128m", "-o env.tar.gz --work-directory {0}")),
    ],
    ids=["archive", "interpreter", "wheels"],
)
@pytest.mark.thorough
def test_full_disk(size, flags, python, tmp_path):
    """A file system of a few megabytes, where this user may make one."""
    small = tmp_path / "small"
    small.mkdir()
    write_wheel(tmp_path / "wheels", "leaf", "1.0", {"leaf.py": "X = 1\n"})
    if size != "3m":  # room for the interpreter, and not for all that comes beside it
        write_wheel(tmp_path / "wheels", "leaf", "1.1", {f"leaf/{n}.txt": " " * 16_000_000 for n in range(8)})
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\nleaf\n")
    inner = f"mount -t tmpfs -o size={size} tmpfs {small} && exec {sys.executable} -m pybackend pack requirements.txt --python {python}"
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", f"{inner} {flags.format(small)}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"UV_CACHE_DIR": str(tmp_path / "cache")},
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 5, done.stderr
    assert f"no space left in {small}" in done.stderr
    assert "make room, or name another place" in done.stderr
    assert not (tmp_path / "env.tar.gz").exists()


def test_python_of_another_version_in_a_conda_environment(channel, tmp_path):
    path = _yml(tmp_path, channel, "python")
    _refused(
        2,
        "a conda environment gets its python from a channel: write a version",
        path,
        "--python",
        "/usr/bin/python3",
        cwd=tmp_path,
    )
    done = run_pack(path, "--python", f"3.{second_minor()}", "--dry-run", cwd=tmp_path)
    assert f" 3.{second_minor()}." in done.stdout


def test_caches_that_cannot_be_written(channel, python, tmp_path):
    """As for a service without a home; /proc cannot be written by anybody."""
    (tmp_path / "requirements.txt").write_text("leaf\n")
    environment = os.environ | {"UV_CACHE_DIR": "/proc/uv", "RATTLER_CACHE_DIR": "/proc/rattler"}
    for arguments in ((tmp_path / "requirements.txt", "--python", python), (_yml(tmp_path, channel, "python"),)):
        _refused(
            5,
            "a package cache is not writable.*set HOME, or UV_CACHE_DIR",
            *arguments,
            cwd=tmp_path,
            env=environment,
        )
