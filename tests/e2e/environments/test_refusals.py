"""Environments that cannot be used: refused when the model is loaded, with the reason, never served by the host's
Python."""

import json
import os
import re
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from pybackend.environment.manifest import MANIFEST_FILENAME, host_libc, host_platform
from tests.support.environments import copy_of, foreign_minors, pack, packed
from tests.support.server import ServerProcess, serving

pytestmark = pytest.mark.timeout(180)


def reason_of(server, name):
    row = server.wait_for(rf'"{re.escape(name)} *\| *1 *\| (.*)"\n')[1]
    return json.loads(f'"{row}"')


def manifest(directory, **fields):
    document = {"format_version": 1, "platform": host_platform(), "python": "3.12.1", **fields}
    (directory / MANIFEST_FILENAME).write_text(json.dumps(document))


def without_activate(prefix, _libraries):
    (prefix / "bin" / "activate").unlink()


def without_python(prefix, _libraries):
    for path in prefix.glob("bin/python*"):
        path.unlink()


def without_numpy(_prefix, libraries):
    for path in libraries.glob("numpy*"):
        shutil.rmtree(path)


def with_old_numpy(_prefix, libraries):
    for path in libraries.glob("numpy-*"):
        path.rename(libraries / "numpy-1.16.6.dist-info")


def with_old_python(prefix, libraries):
    next(prefix.glob("bin/python3.*")).rename(prefix / "bin" / "python3.7")
    libraries.parent.rename(prefix / "lib" / "python3.7")
    for alias in ("python", "python3"):
        (prefix / "bin" / alias).unlink()
        (prefix / "bin" / alias).symlink_to("python3.7")


def for_another_machine(prefix, _libraries):
    program = next(prefix.glob("bin/python3.*"))
    content = bytearray(program.read_bytes())
    content[18:20] = (183 if host_platform() != "linux-aarch64" else 62).to_bytes(2, "little")
    program.unlink()
    program.write_bytes(content)
    program.chmod(0o755)


SPOIL = {
    "no_activate": without_activate,
    "no_python": without_python,
    "no_numpy": without_numpy,
    "old_numpy": with_old_numpy,
    "old_python": with_old_python,
    "other_machine": for_another_machine,
    "newer_libc": lambda prefix, _: manifest(prefix, libc="glibc 2.999"),
    "newer_format": lambda prefix, _: manifest(prefix, format_version=99),
}


def spoilt(directory, case):
    """An environment with one thing wrong."""
    prefix = copy_of(None, directory / case)
    SPOIL[case](prefix, next(prefix.glob("lib/python3.*/site-packages")))
    return prefix


CASES = {
    "no_activate": "Path {prefix}/bin/activate does not exist. The Python environment should contain an 'activate' script.",
    "no_python": "the environment {path} has no Python that this host could start: there is no {prefix}/bin/python",
    "no_numpy": "the environment {path} has no numpy for its Python 3.",
    "old_numpy": "the environment {path} has numpy 1.16.6, every environment needs numpy >= 1.19",
    "old_python": "the environment {path} has Python 3.7, models of this host run on CPython 3.8 and newer",
    "other_machine": "the environment {path} is for linux-",
    "newer_libc": "the environment {path} needs glibc 2.999, this host has " + host_libc(),
    "newer_format": "{prefix}/pybackend-environment.json has format 99, this host reads format 1",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """A server on models that all name environments with something wrong, and the paths that they name."""
    if not foreign_minors():
        pytest.skip("this machine has no second CPython that could be packed")
    from tests.e2e.environments.conftest import ABOUT
    from tests.support.repositories import identity_config, write_model

    root = tmp_path_factory.mktemp("refused")
    repository, places = root / "models", {}

    def write(name, path):
        places[name] = path
        parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'
        write_model(repository, name, ABOUT, identity_config(extra=parameter))

    for case in CASES:
        prefix = spoilt(root, case)
        write(case, prefix)
        if case in {"no_activate", "no_numpy"}:
            write(f"{case}_packed", pack(prefix, root / f"{case}.tar"))
    write("missing", root / "nowhere.tar.gz")
    write("missing_relative", "nowhere/env.tar.gz")
    write("missing_in_model", "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    (root / "loop").symlink_to("loop")
    write("loop", root / "loop")
    os.mkfifo(root / "pipe")
    write("pipe", root / "pipe")
    content = packed().read_bytes()
    (root / "half.tar.gz").write_bytes(content[: len(content) // 2])
    write("half", root / "half.tar.gz")
    (root / "text.tar.gz").write_text("not an archive\n" * 100)
    write("text", root / "text.tar.gz")
    (root / "requirements.txt").write_text("numpy\n")
    write("requirements", root / "requirements.txt")
    with tarfile.open(root / "slip.tar", "w") as tar:
        info = tarfile.TarInfo("../../slipped")
        tar.addfile(info)
    write("slip", root / "slip.tar")
    (root / "wrapped" / "myenv").mkdir(parents=True)
    with tarfile.open(root / "wrapped.tar", "w") as tar:
        tar.add(copy_of(None, root / "wrapped" / "inner") / "bin", "myenv/bin")
    write("wrapped", root / "wrapped.tar")
    cache = root / "cache"
    flags = (f"--environment-cache-directory={cache}", "--exit-on-error=false")
    with serving(repository, flags=flags, ready=False, cwd=root) as server:
        server.wait_for(r'"wrapped +\| 1')
        yield server, places, root


def reason(refused, name):
    server, _, _ = refused
    text = reason_of(server, name)
    assert text.startswith("UNAVAILABLE: Internal: "), text
    assert server.get(f"/v2/models/{name}/ready").status == 400
    return text.removeprefix("UNAVAILABLE: Internal: ")


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize("case", [case for case in CASES if case != "no_activate"])
def test_an_environment_that_does_not_fit_is_refused_with_both_sides(case, refused):
    path = refused[1][case]
    assert reason(refused, case).startswith(CASES[case].format(path=path, prefix=path))


@pytest.mark.spec("pb-V04")
def test_an_environment_without_activate_is_refused(refused):
    path = refused[1]["no_activate"]
    assert reason(refused, "no_activate").startswith(CASES["no_activate"].format(prefix=path))
    packed_path = refused[1]["no_activate_packed"]
    text = reason(refused, "no_activate_packed")
    prefix = re.match(r"Path (\S+)/bin/activate", text)[1]
    assert Path(prefix).parent == refused[2] / "cache" / "environments"
    assert text.startswith(CASES["no_activate"].format(prefix=prefix))
    assert str(packed_path) in text


@pytest.mark.spec("pb-V04")
@pytest.mark.parametrize("name", ["missing", "missing_relative", "missing_in_model", "loop"])
def test_a_path_that_leads_nowhere_is_refused(name, refused):
    _, places, root = refused
    path = str(places[name]).replace("$$TRITON_MODEL_DIRECTORY", str(root / "models" / name))
    path = path if path.startswith("/") else f"{root}/{path}"
    text = reason(refused, name)
    assert text.startswith(f"Failed to get the canonical path for {path}.")
    assert f"working directory, {root}" in text


@pytest.mark.spec("pb-V05")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half", r"\(\d+ bytes\) is broken or truncated"),
        ("text", r"\(1500 bytes\) is broken or truncated"),
        ("pipe", "is neither a directory nor an archive"),
        ("requirements", "lists packages, and this server does not install any: `pybackend pack "),
        ("no_numpy_packed", "has no numpy for its Python 3"),
        ("wrapped", "has it in 'myenv/': name that directory, or pack its contents, not the directory"),
    ],
)
def test_an_archive_that_is_none_is_refused(name, expected, refused):
    text = reason(refused, name)
    assert re.search(expected, text), text
    assert str(refused[1][name]) in text


@pytest.mark.spec("pb-V03")
def test_an_archive_that_leads_out_is_refused(refused):
    _, places, root = refused
    assert reason(refused, "slip") == f"{places['slip']} is refused: Path contains '..': '../../slipped'"
    assert not list(root.rglob("slipped"))


def test_nothing_of_them_stays_in_the_cache(refused):
    """Nor of what was whole: no model can use it, and it would take its place for good."""
    server, _, root = refused
    for name in ("half", "text", "slip", "wrapped"):
        reason(refused, name)
    assert server.output.count("Unpacked /") == 3
    assert [path.name for path in (root / "cache" / "environments").iterdir() if path.is_dir()] == []


@pytest.mark.thorough
@pytest.mark.faults
def test_two_servers_unpack_an_archive_once(tmp_path, about, write_about):
    write_about(tmp_path / "models", packed())
    flag = f"--environment-cache-directory={tmp_path / 'cache'}"
    first, second = (ServerProcess([tmp_path / "models"], flag) for _ in range(2))
    try:
        assert about(first.wait_ready())["prefix"] == about(second.wait_ready())["prefix"]
        assert (first.output + second.output).count("Unpacked /") == 1
    finally:
        first.stop()
        second.stop()


@pytest.mark.thorough
@pytest.mark.faults
def test_a_server_that_is_killed_while_it_unpacks_harms_nobody(tmp_path, about, write_about):
    write_about(tmp_path / "models", packed())
    flag = f"--environment-cache-directory={tmp_path / 'cache'}"
    with serving(tmp_path / "models", flags=(flag,), ready=False) as server:
        server.wait_for(r"\"Unpacking /")
        server.stop(signal.SIGKILL)
    with serving(tmp_path / "models", flags=(flag,)) as server:
        assert about(server)["version"] == [3, foreign_minors()[0]]


@pytest.mark.faults
def test_a_server_that_is_told_to_stop_while_it_unpacks_does(tmp_path, write_about):
    write_about(tmp_path / "models", packed())
    flag = f"--environment-cache-directory={tmp_path / 'cache'}"
    with serving(tmp_path / "models", flags=(flag,), ready=False) as server:
        server.wait_for(r"\"Unpacking /")
        assert server.stop() == 0


@pytest.mark.faults
def test_a_cache_that_cannot_be_written_is_named(tmp_path, write_about):
    write_about(tmp_path / "models", packed())
    (tmp_path / "file").write_text("")
    flags = (f"--environment-cache-directory={tmp_path / 'file'}", "--exit-on-error=false")
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        expected = (
            f"UNAVAILABLE: Unavailable: cannot unpack {packed()} into {tmp_path / 'file'}/environments: Not a directory"
        )
        assert reason_of(server, "m").startswith(expected)
