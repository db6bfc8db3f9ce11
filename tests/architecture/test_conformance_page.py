"""The page of proved behaviours lists what tests claim, no more and no less."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "conformance.md"
ROW = re.compile(r"(?:pb|srv)-[A-Z]\d\d")


def test_page_and_tests_name_the_same_rows():
    # Some tests compute which row a case is about: every identifier in a test's source counts.
    claimed = {row for path in (ROOT / "tests").rglob("test_*.py") for row in ROW.findall(path.read_text())}
    listed = set(re.findall(rf"^\| ({ROW.pattern}) \|", PAGE.read_text(), re.MULTILINE))
    assert listed == claimed
