"""What ``make`` chooses before there is an environment, and that ``make test-all`` forgets no file of tests."""

import os
import subprocess
from pathlib import Path

from tests.support.python_builds import python_built_with

ROOT = Path(__file__).resolve().parents[2]
NO_TESTS_OF_THE_PROJECT = {"tests/bench", "tests/models"}


def test_make_test_all_runs_every_file_of_tests() -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "test-all"],
        cwd=ROOT,
        env=_outside_make(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    named = {*commands, *NO_TESTS_OF_THE_PROJECT}
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 300
    assert [str(file) for file in files if not any(str(place) in named for place in (file, *file.parents[:-2]))] == []


def _outside_make() -> dict[str, str]:
    """The environment without what a `make` that runs these tests passes on to others."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "PYTHON"}


def made_with(path: Path, *arguments: str) -> str:
    target = path / "venv" / "bin" / "python"
    done = subprocess.run(
        ["make", "--no-print-directory", f"VENV={path / 'venv'}", *arguments, str(target)],
        cwd=ROOT,
        env={**_outside_make(), "PATH": f"{path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    target.unlink()
    return done.stdout


def test_an_interpreter_with_optimisations_is_preferred(tmp_path):
    plain = python_built_with("'--enable-shared'", tmp_path / "python3.11")
    better = python_built_with("'--enable-optimizations'", tmp_path / "python3.13")
    assert made_with(tmp_path).endswith("(python3.13, an optimised build)\n")
    assert made_with(tmp_path, f"PYTHON={plain}").endswith(f"({plain})\n")
    better.unlink()
    assert "(python3.13" not in made_with(tmp_path)
