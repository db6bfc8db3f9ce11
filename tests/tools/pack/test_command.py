"""What ``pybackend pack`` shows: bars on a terminal, one line elsewhere, flags as the manual describes them."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.conda_channel import write_wheel
from tests.support.packed_environments import run_pack

pytestmark = pytest.mark.timeout(180)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "authors" / "packing.md"


def test_flags_are_those_of_the_manual():
    shown = set(re.findall(r"--[a-z][a-z-]+", run_pack("--help").stdout)) - {"--help", "--output"}
    page = PAGE.read_text()
    assert {flag for flag in shown if flag not in page} == set()
    statuses = {
        int(number) for line in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE) for number in line.split(",")
    }
    assert statuses == {0, 1, 2, 3, 4, 5, 6, 7, 130, 143}


def test_it_is_among_the_commands():
    done = subprocess.run([sys.executable, "-m", "pybackend", "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"^ +pack +pack an environment", done.stdout, re.MULTILINE)


@pytest.mark.thorough
def test_bars_on_a_terminal_and_one_line_elsewhere(python, tmp_path):
    write_wheel(tmp_path / "wheels", "leaf", "1.0", {"leaf.py": "X = 1\n"})
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\nleaf\n")
    # Paths as people write them: relative to where they are.
    command = [sys.executable, "-m", "pybackend", "pack", "requirements.txt", "--work-directory", "work"]
    command += ["--python", python]
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [*map(str, command)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=its_end,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        text=True,
    ) as process:
        os.close(its_end)
        shown = _read_all(terminal)
        printed = process.stdout.read()
    assert process.returncode == 0, shown
    for step in ("copy interpreter", "install wheels", "compile modules", "write archive"):
        assert re.search(rf"{step} .*100%", shown), shown
    assert re.fullmatch(
        rf"{tmp_path}/env\.tar\.gz: [\d.]+ MB, [\d.]+ MB unpacked, CPython 3\.\d+\.\S+, 1 package, [\d.]+ s\n", printed
    )
    assert list((tmp_path / "work").iterdir()) == []
    quiet = run_pack(tmp_path / "requirements.txt", "--dry-run", "--python", python, cwd=tmp_path)
    assert quiet.returncode == 0
    assert (
        quiet.stderr == "warning: numpy is not among the packages: models cannot run in this environment without it\n"
    )


def _read_all(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()
