"""How the objects of a model become files."""

from datetime import UTC, datetime

import pytest

from pybackend.errors import ModelLoadError
from pybackend_addons.storage.remote_files import RemoteFile, remote_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def files(*paths: str, nbytes: int = 1) -> list[RemoteFile]:
    return [RemoteFile(f"m/{path}" if path else "m", nbytes, "tag", NOW) for path in paths]


def test_versions_are_apart_from_what_they_share():
    model = remote_model(
        "m", files("config.pbtxt", "labels.txt", "warmup/1/x", "1/model.py", "12/a/b", "x1/y"), "place"
    )
    assert model.versions == ("1", "12")
    assert [file.path for file in model.shared()] == ["m/config.pbtxt", "m/labels.txt", "m/warmup/1/x", "m/x1/y"]
    assert [file.path for file in model.of_versions(["12"])] == ["m/12/a/b"]


def test_empty_objects_stand_for_directories():
    listing = [*files("", "1", "2", "2/sub", "empty.txt", nbytes=0), *files("config.pbtxt", "2/sub/model.py")]
    model = remote_model("m", listing, "place")
    assert model.versions == ("1", "2")
    assert sorted(model.files) == ["2/sub/model.py", "config.pbtxt", "empty.txt"]


@pytest.mark.parametrize("path", ["../x", "1/../../x", "1//x", "/etc/passwd", "1/.", "a\0b", "x" * 256, "a/" * 1600])
def test_names_that_are_no_paths_are_refused(path):
    with pytest.raises(ModelLoadError, match=r"has a name that cannot be a file's path: rename or remove it"):
        remote_model("m", files(path), "place")


def test_a_file_cannot_be_a_directory():
    with pytest.raises(ModelLoadError, match=r"'m/1/a' is a file and a directory in place"):
        remote_model("m", files("1/a", "1/a/b"), "place")


def test_identity_follows_the_content():
    one = RemoteFile("m/x", 1, "tag", NOW)
    later = NOW.replace(year=2027)
    assert one.identity == RemoteFile("m/x", 1, "tag", later).identity
    others = [RemoteFile("m/y", 1, "tag", NOW), RemoteFile("m/x", 2, "tag", NOW), RemoteFile("m/x", 1, "other", NOW)]
    untagged = [RemoteFile("m/x", 1, "", NOW), RemoteFile("m/x", 1, "", later)]
    assert len({file.identity for file in (one, *others, *untagged)}) == 6
