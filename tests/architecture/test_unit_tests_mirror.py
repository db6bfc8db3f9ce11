"""Unit tests lie where the modules lie that they test, and have their names."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
TESTED = {
    "host": [ROOT / "host" / "pybackend"],
    "stub": [ROOT / "stub" / "pybackend_stub"],
    "wire": [ROOT / "stub" / "pybackend_wire"],
    "backends": [ROOT / "stub" / "pybackend_backends"],
    "sdk": [ROOT / "sdk" / "pybackend_sdk", ROOT / "sdk"],
}
"""Where the modules are whose tests are in a folder of ``tests/unit``."""

EXCEPTIONS = {
    "host/protocol/test_tritonclient.py": "the client's own code at both ends of ours: requests and responses together",
}
"""Tests that are about no single module, and why."""


def _tests():
    return sorted(str(path.relative_to(UNIT)) for path in UNIT.rglob("test_*.py"))


def _mirrored(test):
    """The modules that a test may be about: ``x`` for ``test_x.py``, and ``x`` for any file in a folder ``x``."""
    part, *folders, name = Path(test).parts
    stem = name.removeprefix("test_").removesuffix(".py")
    for package in TESTED[part]:
        yield package.joinpath(*folders, f"{stem}.py")
        if folders:
            yield package.joinpath(*folders[:-1], f"{folders[-1]}.py")


def test_the_modules_exist():
    lost = {
        test: [str(path.relative_to(ROOT)) for path in _mirrored(test)]
        for test in _tests()
        if test not in EXCEPTIONS and not any(path.is_file() for path in _mirrored(test))
    }
    assert lost == {}, (
        "each of these is about none of its modules: move it to where its module is, or to another kind of test "
        "(tests/README.md)"
    )


def test_exceptions_are_needed():
    assert [test for test in EXCEPTIONS if not (UNIT / test).is_file()] == []
    assert [test for test in EXCEPTIONS if any(path.is_file() for path in _mirrored(test))] == []
