"""A run of tests leaves a report that says which files took how much CPU time, that of their processes included."""

import subprocess
import sys

import pytest

_BURNING = """
import subprocess, sys

def test_burns():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)
"""

_IDLE = """
def test_idles():
    pass

def test_idles_again():
    pass
"""


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.thorough
def test_report_names_files_with_the_cpu_time_of_their_processes(tmp_path, processes):
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_idle.py").write_text(_IDLE)
    (tmp_path / "tests" / "unit" / "test_burning.py").write_text(_BURNING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.durations", "-n", processes, "--dist", "loadfile"]
    ran = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path], check=False, capture_output=True, text=True, timeout=120
    )
    assert "3 passed" in ran.stdout, ran.stdout
    rows = [line.split() for line in (tmp_path / "build" / "durations.txt").read_text().splitlines()[1:] if line]
    assert [(tests, name) for _, _, tests, name in rows] == [
        ("3", "tests/unit"),
        ("1", "tests/unit/test_burning.py"),
        ("2", "tests/unit/test_idle.py"),
    ]
    assert float(rows[1][0]) >= 0.4 > float(rows[2][0])
