"""Unit tests lie where the modules lie that they test, and have their names."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
TESTED = {
    "host": [ROOT / "host" / "pybackend"],
    **{part: [ROOT / "host" / f"pybackend_{part}"] for part in ("addons", "bind", "client", "http2", "tools")},
    "stub": [ROOT / "stub" / "pybackend_stub"],
    "wire": [ROOT / "stub" / "pybackend_wire"],
    "backends": [ROOT / "stub" / "pybackend_backends"],
    "sdk": [ROOT / "sdk" / "pybackend_sdk", ROOT / "sdk"],
    "testing": [ROOT / "sdk" / "pybackend_testing"],
}
"""Where the modules are whose tests are in a folder of ``tests/unit``."""

EXCEPTIONS = {
    "host/protocol/test_tritonclient.py": "the client's own code at both ends of ours: requests and responses together",
}
"""Tests that are about no single module, and why."""


def faults() -> Iterator[str]:
    """Tests of modules that are not there, and exceptions without a reason."""
    for test in sorted(str(path.relative_to(UNIT)) for path in UNIT.rglob("test_*.py")):
        about_a_module = any(path.is_file() for path in _mirrored(test))
        if not about_a_module and test not in EXCEPTIONS:
            yield (
                f"tests/unit/{test}: none of its modules exists: move it to where its module is, or to another kind of "
                f"test (tests/README.md)"
            )
        if about_a_module and test in EXCEPTIONS:
            yield f"tests/unit/{test}: the exception in tests/lint/unit_tests.py is not needed"
    for test in EXCEPTIONS:
        if not (UNIT / test).is_file():
            yield f"tests/lint/unit_tests.py: there is no tests/unit/{test} to except"


def _mirrored(test: str) -> Iterator[Path]:
    """The modules that a test may be about: ``x`` for ``test_x.py``, and ``x`` for any file in a folder ``x``."""
    part, *folders, name = Path(test).parts
    stem = name.removeprefix("test_").removesuffix(".py")
    for package in TESTED[part]:
        yield package.joinpath(*folders, f"{stem}.py")
        if folders:
            yield package.joinpath(*folders[:-1], f"{folders[-1]}.py")
