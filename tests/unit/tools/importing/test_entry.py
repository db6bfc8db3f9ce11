"""An entry while it is made: which files are copied."""

from __future__ import annotations

import os
import shutil

import pytest

from pybackend.errors import ServerError
from pybackend_tools.importing import entry as entry_module
from pybackend_tools.importing.entry import StagedEntry, place_of


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("/etc/passwd", "leads to /etc/passwd, outside of {saved}: only files of the model are copied"),
        ("../secret", "leads to {base}/secret, outside of {saved}: only files"),
        (".", "leads to {saved}/assets, which contains it: remove the link"),
        ("../saved_model.pb", ""),
        ("../variables", ""),
    ],
)
def test_links_that_leave_the_directory_are_refused(tmp_path, link, words):
    saved = tmp_path / "saved"
    for name in ("assets", "variables"):
        (saved / name).mkdir(parents=True)
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    (saved / "assets" / "linked").symlink_to(link if link != "../secret" else "../../secret")
    (tmp_path / "secret").write_text("secret")
    with StagedEntry(place_of(tmp_path / "models", "net", None, force=False)) as entry:
        if words:
            with pytest.raises(ServerError) as told:
                entry.copy({"model.savedmodel": saved}, saved)
            assert words.format(base=tmp_path, saved=saved) in str(told.value)
            assert list(entry.version.iterdir()) == []
        else:
            entry.copy({"model.savedmodel": saved}, saved)
            assert (entry.version / "model.savedmodel/assets/linked").exists()


def nested(saved):
    (saved / "/".join(["d"] * 70)).mkdir(parents=True)


def doubled(saved):
    """Thirty directories, which links make look like a thousand million."""
    for number in range(30):
        (saved / f"{number}").mkdir(parents=True)
        for name in "ab":
            (saved / f"{number}" / name).symlink_to(f"../{number + 1}")
    (saved / "30").mkdir()


def larger_than_the_disk(saved):
    saved.mkdir()
    (saved / "weights").touch()
    os.truncate(saved / "weights", shutil.disk_usage(saved).free + (1 << 32))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (nested, "directories within 64 others. Nothing was imported"),
        (doubled, "it holds more than 1000 files"),
        (larger_than_the_disk, "make room, or choose another --repository. Nothing was imported"),
    ],
)
def test_directories_without_end_are_refused_before_a_byte_is_copied(tmp_path, monkeypatch, make, words):
    monkeypatch.setattr(entry_module, "MOST_FILES", 1000)
    saved = tmp_path / "saved"
    make(saved)
    with StagedEntry(place_of(tmp_path / "models", "net", None, force=False)) as entry:
        with pytest.raises(ServerError) as told:
            entry.copy({"model.savedmodel": saved}, saved)
        assert words in str(told.value)
        assert list(entry.version.iterdir()) == []


def test_a_snapshot_in_a_cache_of_hugging_face_may_link_to_its_blobs(tmp_path):
    hub = tmp_path / "models--tiny"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "1a2b").mkdir(parents=True)
    (hub / "blobs" / "ff").write_text("{}")
    (hub / "snapshots" / "1a2b" / "config.json").symlink_to("../../blobs/ff")
    snapshot = hub / "snapshots" / "1a2b"
    with StagedEntry(place_of(tmp_path / "models", "tiny", None, force=False)) as entry:
        entry.copy({"config.json": snapshot / "config.json"}, snapshot)
        assert (entry.version / "config.json").read_text() == "{}"


def test_files_beside_the_versions_are_no_way_out_either(tmp_path):
    model, secret = tmp_path / "models" / "net", tmp_path / "secret"
    (model / "1").mkdir(parents=True)
    secret.write_text("secret")
    (model / "labels.txt").write_text("a")
    (model / "same.txt").symlink_to("labels.txt")
    place = place_of(tmp_path / "models", "net", 2, force=False)
    with StagedEntry(place) as entry:
        entry.copy_beside()
        assert (entry.model / "same.txt").read_text() == "a"
    (model / "more.txt").symlink_to(secret)
    refused = pytest.raises(ServerError, match=f"more.txt leads to {secret}, outside of {model}")
    with StagedEntry(place) as entry, refused:
        entry.copy_beside()


def test_what_a_running_model_puts_in_the_way_is_not_written_through(tmp_path):
    own = tmp_path / "own"
    own.write_text("mine")
    with StagedEntry(place_of(tmp_path / "models", "net", None, force=False)) as entry:
        (entry.model / "sample_request.json").symlink_to(own)
        entry.write("sample_request.json", "{}")
        assert not (entry.model / "sample_request.json").is_symlink()
    assert own.read_text() == "mine"
