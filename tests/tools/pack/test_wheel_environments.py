"""``pybackend pack`` of requirements and projects: a CPython of this machine, copied, with wheels beside it."""

import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pybackend.environment.prefixes import rewrite_prefixes
from pybackend_tools.pack.interpreter import probe
from pybackend_tools.pack.python_tree import copy_interpreter
from tests.floor.environments import interpreters
from tests.support.conda_channel import write_wheel
from tests.support.packed_environments import ask, manifest, run_pack, unpacked

pytestmark = pytest.mark.timeout(300)

TOOL = {"tool_pkg.py": "def main():\n    import sys\n    print('tool', sys.prefix)\n"}


@pytest.fixture
def wheels(tmp_path):
    directory = tmp_path / "wheels"
    entry = {"tool_pkg-1.0.dist-info/entry_points.txt": "[console_scripts]\ntool = tool_pkg:main\n"}
    write_wheel(directory, "tool_pkg", "1.0", TOOL | entry, requires=["leaf>=1"])
    write_wheel(directory, "leaf", "1.5", {"leaf.py": "VERSION = '1.5'\n"})
    write_wheel(directory, "leaf", "1.6", {"leaf.py": "VERSION = '1.6'\n"})
    return directory


def _pack(file, archive, *flags, **options):
    done = run_pack(file, "-o", archive, *flags, **options)
    assert done.returncode == 0, done.stderr
    return done


def test_requirements_become_an_environment_that_runs_anywhere(wheels, python, tmp_path):
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\n# a comment\ntool-pkg\nleaf<1.6\n")
    done = _pack(tmp_path / "requirements.txt", tmp_path / "env.tar.gz", "--python", python)
    assert "CPython 3." in done.stdout
    prefix = unpacked(tmp_path / "env.tar.gz", tmp_path / "a directory")
    answer = ask(prefix, "import sys, ssl, ctypes, zlib, leaf; print(leaf.VERSION, sys.prefix, sys.path[-1])")
    assert answer.startswith(f"1.5 {prefix} {prefix}/lib")
    path = f"{prefix}/bin:/usr/bin:/bin"
    done = subprocess.run([prefix / "bin" / "tool"], capture_output=True, text=True, check=False, env={"PATH": path})
    assert done.stdout.strip() == f"tool {prefix}"
    # msgpack is not in the wheels: an environment without it is one as well.
    names = {package["name"] for package in manifest(tmp_path / "env.tar.gz")["packages"]}
    assert names == {"tool-pkg", "tool_pkg", "leaf"} & names
    assert len(names) == 2


@pytest.mark.thorough
def test_same_requirements_give_the_same_bytes_and_a_lock_keeps_them(wheels, python, tmp_path):
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\nleaf\ntool-pkg\n")
    flags = ("--python", python, "--lock", tmp_path / "env.lock", "--no-msgpack")
    _pack(tmp_path / "requirements.txt", tmp_path / "one.tar.gz", *flags)
    write_wheel(wheels, "leaf", "1.7", {"leaf.py": "VERSION = '1.7'\n"})
    _pack(tmp_path / "requirements.txt", tmp_path / "two.tar.gz", *flags)
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\nleaf>1.6\n")
    done = run_pack(tmp_path / "requirements.txt", "-o", tmp_path / "three.tar.gz", *flags)
    assert done.returncode == 2
    assert "was written for other packages, or for another --python or --extra" in done.stderr


@pytest.mark.thorough
def test_the_lock_keeps_the_python_that_it_was_written_with(wheels, python, tmp_path):
    """Also where a newer one of that minor version is found."""
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\nleaf\n")
    flags = ("--lock", tmp_path / "env.lock", "--no-msgpack")
    _pack(tmp_path / "requirements.txt", tmp_path / "one.tar.gz", *flags)
    own = probe(str(Path(sys.executable).resolve()))
    newer = tmp_path / "bin" / f"python{own.minor}"
    newer.parent.mkdir()
    newer.write_text(
        f'#!/bin/sh\n{own.executable} "$@" | sed "s/{own.version}/{own.minor}.99/; s#{own.executable}#{newer}#"\n'
    )
    newer.chmod(0o755)
    path = f"{newer.parent}:{os.environ['PATH']}"
    done = _pack(tmp_path / "requirements.txt", tmp_path / "two.tar.gz", *flags, env=os.environ | {"PATH": path})
    assert "the lock was written with" not in done.stderr
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()


@pytest.mark.thorough
def test_project_with_an_extra_and_a_version_of_python_beside_it(wheels, python, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "demo"\nversion = "0.1"\nrequires-python = ">=3.8"\ndependencies = ["leaf"]\n'
        '[project.optional-dependencies]\nmore = ["tool-pkg"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n'
    )
    (project / ".python-version").write_text(f"# as uv reads it\n{python}\n")
    _pack(project / "pyproject.toml", tmp_path / "env.tar.gz", "--extra", "more", "--no-msgpack")
    prefix = unpacked(tmp_path / "env.tar.gz", tmp_path / "e")
    assert ask(prefix, "import leaf, tool_pkg; print(leaf.VERSION)") == "1.6"


def test_virtual_environment_is_put_beside_a_copy_of_its_interpreter(wheels, python, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([python / "bin" / "python", "-m", "venv", "--without-pip", venv], check=True)
    from uv import find_uv_bin

    install = [
        find_uv_bin(),
        "pip",
        "install",
        "-q",
        "--no-index",
        "--find-links",
        wheels,
        "--python",
        venv,
        "tool-pkg",
    ]
    subprocess.run(install, check=True)
    (venv / "share").mkdir(exist_ok=True)
    (venv / "share" / "conf").write_text(f"home = {venv}\n")
    done = _pack(venv, tmp_path / "env.tar.gz")
    assert "warning: numpy is not among the packages" in done.stderr
    prefix = unpacked(tmp_path / "env.tar.gz", tmp_path / "e")
    rewrite_prefixes(prefix, "env.tar.gz")
    assert (
        ask(prefix, "import sys, tool_pkg; tool_pkg.main(); print(sys.prefix == sys.base_prefix)")
        == f"tool {prefix}\nTrue"
    )
    assert (
        subprocess.run([prefix / "bin" / "tool"], capture_output=True, text=True, check=True).stdout.strip()
        == f"tool {prefix}"
    )
    assert (prefix / "share" / "conf").read_text() == f"home = {prefix}\n"
    assert str(venv) not in (prefix / "bin" / "tool").read_text()
    shown = run_pack(venv, "--dry-run")
    assert "leaf" in shown.stdout
    assert shown.stdout.endswith(", nothing to download; nothing was installed\n")


def _programs():
    """Every CPython of this machine, and a system's own if another one of that version hides it."""
    found = dict.fromkeys(interpreters().values())
    found |= dict.fromkeys(
        str(path)
        for path in sorted(Path("/usr/bin").glob("python3.[0-9]*"))
        if path.name[7:].replace(".", "").isdigit()
    )
    return list(found)


@pytest.mark.thorough
@pytest.mark.parametrize("path", _programs(), ids=lambda path: path.strip("/").replace("/", "-"))
def test_every_cpython_of_this_machine_can_be_moved(path, tmp_path):
    interpreter = probe(path)
    if interpreter is None or interpreter.release < (3, 8):
        pytest.skip(f"{path} is no CPython that models run in")
    copy_interpreter(interpreter, tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    code = (
        "import sys, sysconfig, ctypes, hashlib, json, zlib\n"
        "print(sys.prefix, sys.exec_prefix)\n"
        "print(*(p for p in sys.path if not p.startswith(sys.prefix)))\n"
        "print(sysconfig.get_paths()['purelib'])\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})\n"
    )
    prefix, foreign, purelib, loaded = ask(moved, code).splitlines() if "\n" in ask(moved, code) else ("", "", "", "")
    assert prefix == f"{moved} {moved}"
    assert foreign == ""
    assert Path(purelib).resolve() == next(moved.glob("lib*/python3.*/site-packages"))
    system = {"libc", "libm", "libdl", "libpthread", "librt", "libutil", "ld-linux-x86-64", "ld-linux-aarch64", "ld-2"}
    from_elsewhere = {
        Path(name).name.split(".so")[0].split("-2.")[0] for name in loaded.split() if not name.startswith(str(moved))
    }
    assert from_elsewhere <= system, loaded


def test_a_dry_run_states_sizes_or_that_they_are_unknown(wheels, python, tmp_path):
    """Wheels on disk have sizes; an index that is a page of links states none."""
    simple = tmp_path / "simple" / "leaf"
    simple.mkdir(parents=True)
    name = "leaf-1.6-py3-none-any.whl"
    shutil.copy(wheels / name, simple)
    (simple / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{name}">{name}</a></body></html>')
    (tmp_path / "here.txt").write_text("--no-index\n--find-links wheels\nleaf\n")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (tmp_path / "there.txt").write_text(f"--index-url http://127.0.0.1:{server.server_port}/simple/\nleaf\n")
        flags = ("--python", python, "--no-msgpack", "--dry-run")
        shown = [run_pack(tmp_path / f"{place}.txt", *flags, cwd=tmp_path) for place in ("here", "there")]
        server.shutdown()
        thread.join()
    summaries = [done.stdout.rstrip("\n").rpartition("\n")[2] for done in shown]
    assert summaries == [
        "2 packages, 1 kB to download; nothing was installed",
        "2 packages, 1 package of unknown size to download; nothing was installed",
    ], [done.stderr for done in shown]
    assert "0.0 MB" not in shown[0].stdout + shown[1].stdout
