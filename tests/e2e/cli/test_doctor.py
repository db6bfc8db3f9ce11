"""``pybackend doctor``: what it finds on a machine that has all, and on machines that lack something."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.hosts import public_directory, public_python

pytestmark = pytest.mark.e2e

LAYERS = [
    "python", "kernel", "open files", "processes", "shared memory", "model processes", "zygote", "sandbox",
    "environment cache", "packing", "gpu",
]  # fmt: skip


def doctor(*arguments, before="", python=sys.executable, **variables):
    """Run it, after some lines of Python in the same process."""
    code = f"import sys\n{before}\nfrom pybackend.cli import main\nsys.exit(main())"
    return subprocess.run(
        [python, "-c", code, "doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
        env={**os.environ, **variables},
    )


def rows(*arguments, before="", python=sys.executable, **variables):
    """The exit status, and the findings by their layer."""
    done = doctor("--json", *arguments, before=before, python=python, **variables)
    assert done.stderr == ""
    return done.returncode, {row["layer"]: row for row in json.loads(done.stdout)}


def test_every_layer_has_a_row(tmp_path):
    status, found = rows(f"--environment-cache-directory={tmp_path / 'not' / 'there'}")
    assert list(found) == LAYERS
    assert status == 0
    assert all(row["status"] in {"ok", "warn"} for row in found.values()), found
    assert all(bool(row["advice"]) == (row["status"] != "ok") for row in found.values()), found
    assert found["python"]["found"].endswith(sys.executable)
    assert found["model processes"]["found"].startswith(f"Python {sys.version.split()[0]}, numpy ")
    assert list(tmp_path.iterdir()) == [], "it has changed something"


def test_for_people():
    done = doctor()
    assert [line[6:].partition(":")[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == LAYERS
    assert "fail" not in done.stdout


def test_few_descriptors(tmp_path):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))"
    status, found = rows(before=limit.format(300))
    assert (status, found["open files"]["status"]) == (0, "warn")
    assert "ulimit -Hn 65536" in found["open files"]["advice"]
    status, found = rows(before=limit.format(100))
    assert (status, found["open files"]["status"]) == (1, "fail")
    assert "model processes" not in found  # there would be no telling what is to blame


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users away")
def test_its_own_files_are_in_nobodys_way():
    """A server of this user and Python would give its models users of their own; so does the trial."""
    public = public_directory()
    try:
        _, found = rows(python=public_python(public), XDG_CACHE_HOME=str(public / "cache"))
    finally:
        shutil.rmtree(public)
    assert "other users cannot" not in found["sandbox"]["found"], found["sandbox"]
    assert "it runs as a separate user" not in found["sandbox"]["advice"]


def test_a_cache_that_is_no_directory(tmp_path):
    (tmp_path / "file").touch()
    status, found = rows(f"--environment-cache-directory={tmp_path / 'file' / 'cache'}")
    assert (status, found["environment cache"]["status"]) == (1, "fail")
    assert "--environment-cache-directory" in found["environment cache"]["advice"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o555)
    status, found = rows(f"--environment-cache-directory={tmp_path / 'cache'}")
    assert (status, found["environment cache"]["status"]) == (1, "fail")


def test_a_python_that_cannot_run_models(tmp_path):
    """The host has numpy; the process does not find it."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fake.chmod(0o755)
    status, found = rows(before=f"sys.executable = {str(fake)!r}")
    assert (status, found["model processes"]["status"]) == (1, "fail")
    assert "exited with status 3" in found["model processes"]["found"]
    assert "zygote" not in found


def test_wrong_usage():
    done = doctor("--jsno")
    assert done.returncode == 1
    assert "--jsno" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_in_the_help():
    done = subprocess.run([sys.executable, "-m", "pybackend", "--help"], capture_output=True, text=True, check=False)
    assert "doctor" in done.stdout


def test_the_page_has_a_line_for_every_row():
    page = (Path(__file__).parents[3] / "docs/operators/doctor.md").read_text()
    assert [line[6:].partition(":")[0] for line in page.splitlines() if line.startswith(("ok ", "warn "))] == LAYERS
