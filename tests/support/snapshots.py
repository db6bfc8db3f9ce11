"""Snapshots: texts of ours that tests compare as a whole, in the files ``__snapshots__/*.ambr`` beside the tests.

``make snapshots`` renews them. syrupy reads and writes them; here are the two things that it cannot know: what differs
from run to run, and that a run of some tests says nothing about the snapshots of others (``tests/lint/snapshots.py``
finds those that no test uses).
"""

import os
import re
import sys
from typing import Any

from syrupy.data import SnapshotCollections
from syrupy.extensions.amber import AmberSnapshotExtension

_END = r"(?=[/'\"`\s:,.;)\]]|$)"
_OF_THE_RUN = (
    (re.compile(re.escape(sys.executable) + r"(?![\w.])"), "PYTHON"),
    (re.compile(r"(?:/[\w.+-]+)+/pytest-of-[^/]+/pytest-\d+(?:/popen-gw\d+)?/[\w-]+?\d+" + _END), "TMP"),
    (re.compile(re.escape(os.getcwd()) + _END), "HERE"),
    (re.compile(r"/tmp/pybackend-[a-z]+-\w{8}" + _END), "TMP"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}|(?<=localhost:)\d{4,5}|(?<=\[::1\]:)\d{4,5}"), "PORT"),
    (re.compile(r"\b(process|pid|PID)( |=)\d+"), r"\1\2PID"),
)


def settled(text: str) -> str:
    """A text without what differs from run to run: this Python, directories, ports and numbers of processes."""
    for pattern, name in _OF_THE_RUN:
        text = pattern.sub(name, text)
    return text


class AllTexts(AmberSnapshotExtension):
    """Snapshots while ``make snapshots`` renews them: those that no test has used are deleted."""

    def serialize(self, data: Any, **options: Any) -> str:
        return super().serialize(settled(data) if isinstance(data, str) else data, **options)


class Texts(AllTexts):
    """Snapshots in every other run."""

    def discover_snapshots(self, **_place: Any) -> SnapshotCollections:
        return SnapshotCollections()
