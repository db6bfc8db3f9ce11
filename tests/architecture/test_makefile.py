"""No file of tests is forgotten: ``make test-all`` names its directory."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_TESTS_OF_THE_PROJECT = {"tests/bench", "tests/models"}


def test_make_test_all_runs_every_file_of_tests() -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "test-all"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    named = {*commands, *NO_TESTS_OF_THE_PROJECT}
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 300
    assert [str(file) for file in files if not any(str(place) in named for place in (file, *file.parents[:-2]))] == []
