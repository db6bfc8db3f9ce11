"""Each snapshot is of a test that is there, row by row, and that compares with it."""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from syrupy.extensions.amber import AmberDataSerializer

ROOT = Path(__file__).resolve().parents[2]

FURTHER = re.compile(r"\.\d+$")
"""What follows a test's name for the second text that it compares, and for the next ones."""


def faults() -> Iterator[str]:
    """Snapshots that no test compares anything with."""
    kept = {_test_file(path): path for path in sorted((ROOT / "tests").rglob("__snapshots__/*.ambr"))}
    tests = _comparing([test for test in kept if test.is_file()])
    for test, path in kept.items():
        names = (snapshot.name for snapshot in AmberDataSerializer.read_file(str(path)))
        for name in unused(names, tests[test]):
            yield f"{path.relative_to(ROOT)}: no test {name} of {test.name} compares with a snapshot: type make snapshots"


def unused(names: Iterable[str], tests: set[str]) -> list[str]:
    """The names of snapshots that are of none of these tests."""
    return sorted(name for name in names if FURTHER.sub("", name) not in tests)


def _test_file(snapshots: Path) -> Path:
    return snapshots.parents[1] / f"{snapshots.stem}.py"


def _comparing(files: list[Path]) -> defaultdict[Path, set[str]]:
    """The tests that compare with snapshots, by file."""
    found: defaultdict[Path, set[str]] = defaultdict(set)
    if not files:
        return found
    options = ["--collect-only", "-q", "--all", "-n", "0", "-p", "no:cacheprovider", "-m", "syrupy_snapshot"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
    collection = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if collection.returncode not in {0, 5}:
        raise SystemExit(f"The tests with snapshots cannot be collected:\n{collection.stdout}{collection.stderr}")
    for line in collection.stdout.splitlines():
        file, separator, name = line.partition("::")
        if separator:
            found[ROOT / file].add(name.replace("::", "."))
    return found
