"""Which changes of a model's files are noticed, and to which versions they matter."""

import os
from pathlib import Path

import pytest

from pybackend.model.fingerprint import fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    model = tmp_path / "m"
    for name in ("1/model.py", "1/weights/a.bin", "2/model.py", "shared/labels.txt"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text("old")
    (model / "config.pbtxt").write_text("")
    (model / "labels.txt").write_text("old")
    return model


def _replace(path: Path) -> None:
    path.with_suffix(".new").write_text("new")
    path.with_suffix(".new").rename(path)


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _add(path: Path) -> None:
    (path.parent / "added").write_text("")


@pytest.mark.parametrize("change", [_replace, _touch, _add, Path.unlink])
@pytest.mark.parametrize(
    ("path", "concerns"),
    [
        ("1/model.py", {1}),
        ("1/weights/a.bin", {1}),
        ("2/model.py", {2}),
        ("labels.txt", {1, 2}),
        ("shared/labels.txt", {1, 2}),
    ],
)
def test_a_change_concerns_the_versions_that_can_depend_on_it(model, path, concerns, change):
    before = fingerprint(model)
    change(model / path)
    after = fingerprint(model)
    assert {version for version in (1, 2) if before.of_version(version) != after.of_version(version)} == concerns


def test_what_does_not_matter(model):
    before = fingerprint(model)
    _replace(model / "config.pbtxt")  # it is compared by what it means
    (model / "1/__pycache__").mkdir()
    (model / "1/__pycache__/model.pyc").write_text("")
    for name in ("4913", "model.py~", ".model.py.swp", ".#model.py", "#model.py#", "model.py___jb_tmp___"):
        (model / "1" / name).write_text("")  # editors
    (model / ".pytest_cache/v").mkdir(parents=True)
    (model / ".pytest_cache/v/lastfailed").write_text("")
    (model / "3").mkdir()  # another version
    (model / "3/model.py").write_text("")
    (model / "1/model.py").read_text()
    after = fingerprint(model)
    assert all(before.of_version(version) == after.of_version(version) for version in (1, 2))
    assert fingerprint(model).of_version(3) != before.of_version(3)


def test_links_are_followed_to_what_they_lead_to_now(tmp_path, model):
    """As a mounted ConfigMap changes: by one link to a folder, replaced at once."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "..one").mkdir()
    (mounted / "..one/model.py").write_text("same")
    (mounted / "..two").mkdir()
    (mounted / "..two/model.py").write_text("same")
    (mounted / "..data").symlink_to("..one")
    (mounted / "model.py").symlink_to("..data/model.py")
    (model / "4").symlink_to(mounted)
    before = fingerprint(model)
    assert fingerprint(model) == before
    (mounted / "..new").symlink_to("..two")
    (mounted / "..new").rename(mounted / "..data")
    assert fingerprint(model).of_version(4) != before.of_version(4)


def test_links_that_lead_nowhere_or_in_circles(model):
    (model / "1/self").symlink_to("self")
    (model / "1/up").symlink_to("..")
    (model / "1/gone").symlink_to("nowhere")
    assert fingerprint(model) == fingerprint(model)


def test_a_directory_that_is_not_there(tmp_path):
    assert fingerprint(tmp_path / "m").folders == {}
