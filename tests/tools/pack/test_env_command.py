"""``pybackend env`` on real environments, while servers use them and afterwards."""

import json
import os
import subprocess
import sys
import tarfile

import pytest

from pybackend.environment.manifest import EnvironmentManifest, PackedPackage, host_platform
from tests.support.environments import copy_of, foreign_minors, pack, packed, tree
from tests.support.server import serving
from tests.support.warm_start import run_command

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def env(tmp_path):
    """Runs the command on a cache of its own; returns its status and what it prints."""

    def env(*arguments, json_wanted=False, **options):
        flags = [f"--environment-cache-directory={tmp_path / 'cache'}", *(["--json"] if json_wanted else [])]
        done = run_command("env", *map(str, arguments), *flags, **{"timeout": 60, **options})
        output = done.stdout + done.stderr
        assert "Traceback" not in output, output
        return done.returncode, json.loads(done.stdout) if json_wanted else output

    return env


@pytest.fixture
def filled(tmp_path, write_about):
    """A repository whose model was served once."""
    write_about(tmp_path / "models", packed())
    flag = f"--environment-cache-directory={tmp_path / 'cache'}"
    with serving(tmp_path / "models", flags=(flag,)):
        pass
    return tmp_path / "models", flag


def test_a_cache_that_is_not_there_is_empty(env, tmp_path):
    assert env("list") == (0, f"no environment is unpacked in {tmp_path}/cache/environments\n")
    assert env("list", json_wanted=True) == (0, [])
    assert env("verify")[0] == 0
    assert env("prune") == (0, "removed 0, 0.0 MB\n")


def test_what_is_unpacked_is_listed_verified_and_removed(env, filled, tmp_path):
    repository, flag = filled
    with serving(repository, flags=(flag,)):
        status, (row,) = env("list", json_wanted=True)
        assert (status, row["state"], row["source"]) == (0, "in use", str(packed()))
        assert row["python"].startswith(f"Python 3.{foreign_minors()[0]}")
        _, text = env("list")
        assert text.splitlines()[0].split() == ["KEY", "PYTHON", "SIZE", "USED", "STATE", "ARCHIVE"]
        assert "in use" in text
        assert env("prune") == (0, "removed 0, 0.0 MB\n")
    prefix = tmp_path / "cache" / "environments" / row["key"]
    assert env("verify") == (0, f"{row['key'][:12]}  as it was unpacked\n")
    tool = prefix / "bin" / "tool"
    tool.write_text("#!/bin/sh\nexit 1\n")
    status, text = env("verify", row["key"][:6])
    assert status == 1
    assert "bin/tool: has " in text
    assert env("prune", "--unused-for=1") == (0, "removed 0, 0.0 MB\n")
    _, text = env("prune", "--dry-run")
    assert text.startswith(f"{row['key'][:12]}  {packed()}\nwould remove 1, ")
    assert prefix.exists()
    status, document = env("prune", json_wanted=True)
    assert (status, document["removed"], document["failed"]) == (0, [row["key"]], [])
    assert os.listdir(tmp_path / "cache" / "environments") == []


def test_what_a_crash_has_left_is_listed_and_removed(env, tmp_path):
    (tmp_path / "cache" / "environments" / ("ab" * 20) / "bin").mkdir(parents=True)
    _, (row,) = env("list", json_wanted=True)
    assert (row["key"], row["state"]) == ("ab" * 20, "incomplete")
    assert env("verify")[0] == 1
    assert env("prune", "--unused-for=30")[1] == "abababababab  incomplete\nremoved 1, 0.0 MB\n"


@pytest.mark.parametrize("kind", ["archive", "directory"])
def test_an_environment_is_described(kind, env):
    path = packed() if kind == "archive" else tree()
    status, found = env("inspect", path, json_wanted=True)
    assert status == 0
    assert found["python"] == f"3.{foreign_minors()[0]}"
    assert found["platform"] == host_platform()
    assert {"name": "numpy", "version": found["numpy"], "source": ""} in found["packages"]
    assert found["usable"] is True
    assert found["files"] > 500
    assert bool(found["key"]) is (kind == "archive")
    _, text = env("inspect", path)
    assert f"python         Python 3.{foreign_minors()[0]}, numpy" in text
    assert "usable here    yes" in text


@pytest.mark.thorough
def test_the_same_archive_is_recognised_in_the_cache(env, filled):
    found = env("inspect", packed(), json_wanted=True)[1]
    assert found["cached"] is True
    by_key = env("inspect", found["key"][:8], json_wanted=True)[1]
    assert by_key["numpy"] == found["numpy"]


def test_a_manifest_is_shown(env, tmp_path):
    prefix = copy_of(None, tmp_path / "env")
    packages = (PackedPackage("numpy", "1.19.0", "pypi"),)
    EnvironmentManifest(host_platform(), "3.8.18", "glibc 2.17", packages=packages, created_by="test 1").write(prefix)
    _, text = env("inspect", pack(prefix, tmp_path / "env.tar"))
    for expected in ("Python 3.8.18", f"{host_platform()}, glibc 2.17", "packed by      test 1", "numpy 1.19.0 (pypi)"):
        assert expected in text


@pytest.mark.parametrize("kind", ["archive", "directory"])
def test_what_cannot_be_used_here_ends_with_status_1(kind, env, tmp_path):
    prefix = copy_of(None, tmp_path / "env")
    EnvironmentManifest("linux-riscv64", "3.12.0").write(prefix)
    for program in prefix.glob("bin/python3.*"):
        program.unlink()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    path = pack(prefix, tmp_path / "env.tar") if kind == "archive" else prefix
    status, text = env("inspect", path)
    assert status == 1
    assert f"usable here    no: {path} is for linux-riscv64, this host is {host_platform()}" in text


def test_a_hostile_archive_is_refused(env, tmp_path):
    with tarfile.open(tmp_path / "env.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../evil"))
    assert env("inspect", tmp_path / "env.tar") == (
        1,
        f"error: {tmp_path}/env.tar is refused: Path contains '..': '../evil'\n",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["inspect", "/nowhere"], "error: cannot read /nowhere: No such file or directory"),
        (["verify", "zz"], "has a key that begins with 'zz'"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["prune", "--unused-for=long"], "argument --unused-for: 'long' is not a number of days, such as 30 or 0.5"),
        (["prune", "--unused-for=-1"], "'-1' is not a number of days"),
        (["prune", "--unused-for=nan"], "'nan' is not a number of days"),
        (["inspect", "/dev/zero"], "error: /dev/zero is neither a directory nor an archive"),
    ],
    ids=["missing", "key", "command", "number", "negative", "nan", "device"],
)
def test_a_wrong_command_is_told_in_words(arguments, expected, env):
    status, text = env(*arguments, timeout=60)
    assert status == 1
    assert expected in text


@pytest.mark.thorough
def test_a_reader_that_goes_away_is_no_error(filled, tmp_path):
    command = f"{sys.executable} -m pybackend env inspect {packed()} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
