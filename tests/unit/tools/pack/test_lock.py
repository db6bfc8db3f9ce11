"""Locks: written whole, read only for the file and the machine that they are for."""

import json

import pytest

from pybackend_tools.pack.errors import OutputError, SpecificationError
from pybackend_tools.pack.lock import Lock, read_lock

LOCK = Lock("hash", "linux-x86_64", "3.12.1", [{"name": "python"}], ["numpy==2.0"])


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "env.lock"
    assert read_lock(path, "hash", "linux-x86_64") is None
    LOCK.write(path)
    assert read_lock(path, "hash", "linux-x86_64") == LOCK
    assert [each.name for each in tmp_path.iterdir()] == ["env.lock"]


@pytest.mark.parametrize(
    ("specification", "platform", "message"),
    [
        (
            "other",
            "linux-x86_64",
            "was written for other packages, or for another --python or --extra",
        ),
        ("hash", "linux-aarch64", "is for linux-x86_64, and this machine is linux-aarch64"),
    ],
)
def test_locks_of_something_else(specification, platform, message, tmp_path):
    LOCK.write(tmp_path / "env.lock")
    with pytest.raises(SpecificationError, match=message):
        read_lock(tmp_path / "env.lock", specification, platform)


@pytest.mark.parametrize(
    "change",
    [
        {"conda": {}},
        {"conda": ["x"]},
        {"wheels": [1]},
        {"wheels": None},
        {"python": 3},
        {"format_version": 2},
        "[]",
        "{",
        "3",
        "null",
    ],
    ids=str,
)
def test_files_that_are_no_lock(change, tmp_path):
    document = json.loads(LOCK.to_json())
    text = change if isinstance(change, str) else json.dumps(document | change)
    (tmp_path / "env.lock").write_text(text)
    with pytest.raises(SpecificationError, match="delete it to write a new one"):
        read_lock(tmp_path / "env.lock", "hash", "linux-x86_64")


def test_place_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        LOCK.write(tmp_path / "none" / "env.lock")
