"""Which models there are in one or several repositories."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybackend.errors import ServerError
from pybackend.repository.layout import DUPLICATE_REASON, scan_repositories


@pytest.fixture
def unreadable() -> Iterator[Path]:
    """A directory that this process may not list, whoever runs it."""
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        directory = Path(parent, "repository")
        directory.mkdir(mode=0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # permissions do not bind root
        try:
            yield directory
        finally:
            os.seteuid(user)
            directory.chmod(0o700)


def test_every_visible_directory_is_a_model(tmp_path: Path) -> None:
    for name in ("b", "a", "with space", "é", ".hidden", "..data", "__pycache__", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").write_text("")
    scan = scan_repositories([tmp_path])
    assert list(scan.models.items()) == [(name, tmp_path / name) for name in ("a", "b", "with space", "é")]
    assert (dict(scan.duplicates), scan.warnings) == ({}, ())


def test_an_empty_repository_is_valid(tmp_path: Path) -> None:
    assert not scan_repositories([tmp_path]).models


def test_links_to_models_and_to_repositories(tmp_path: Path) -> None:
    (tmp_path / "store" / "m").mkdir(parents=True)
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "linked").symlink_to("../store/m")
    (tmp_path / "repository" / "dangling").symlink_to("nowhere")
    (tmp_path / "repository" / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("repository")
    assert dict(scan_repositories([tmp_path / "link"]).models) == {"linked": tmp_path / "link" / "linked"}


def test_a_name_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
    for name in ("one/m", "two/m", "one/a", "two/b"):
        (tmp_path / name).mkdir(parents=True)
    scan = scan_repositories([tmp_path / "one", tmp_path / "two"])
    assert dict(scan.models) == {"a": tmp_path / "one/a", "b": tmp_path / "two/b"}
    assert dict(scan.duplicates) == {"m": (str(tmp_path / "one/m"), str(tmp_path / "two/m"))}
    (warning,) = scan.warnings
    assert warning == (
        f"failed to poll model 'm': not unique across all model repositories: {tmp_path}/one/m, {tmp_path}/two/m"
    )
    assert DUPLICATE_REASON == "model appears in two or more repositories"


def test_a_repository_given_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one" / "m").mkdir(parents=True)
    (tmp_path / "link").symlink_to("one")
    scan = scan_repositories([tmp_path / "one", tmp_path / "link", tmp_path / "one"])
    assert dict(scan.models) == {"m": tmp_path / "one" / "m"}


def test_namespaces_keep_models_of_one_name_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for repository in one, two:
        (repository / "m").mkdir(parents=True)
    (tmp_path / "link").symlink_to("two")
    scan = scan_repositories([one, two, tmp_path / "link"], [one / "m"], namespacing=True).again({})
    assert dict(scan.models) == {f"{two}::m": two / "m"}
    assert dict(scan.duplicates) == {f"{one}::m": (str(one / "m"), str(one / "m"))}
    assert scan.namespaces is not None
    assert scan.namespaces.split(f"{one}::m") == (str(one), "m")


def test_a_model_given_as_repository_is_noticed(tmp_path: Path, snapshot) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text("")
    scan = scan_repositories([tmp_path / "m"])
    (warning,) = scan.warnings
    assert warning.startswith(
        f"'{tmp_path}/m' holds a config.pbtxt: it looks like a model, not like a repository of models"
    )
    assert warning == snapshot


def test_names_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    scan = scan_repositories([tmp_path])
    assert not scan.models
    assert scan.warnings == (f"ignore model directory '\ufffd' in {tmp_path}: its name is not UTF-8",)


def test_missing_and_invalid_repositories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (
        ("missing", "it does not exist"),
        ("file", "it is not a directory"),
        ("loop", "it cannot be read (Too many levels of symbolic links)"),
    ):
        path = tmp_path / name
        with pytest.raises(ServerError) as caught:
            scan_repositories([tmp_path, path])
        assert str(caught.value) == f"repository path is not a valid directory: '{path}': {reason}"


def test_an_unreadable_repository(unreadable: Path) -> None:
    with pytest.raises(ServerError) as caught:
        scan_repositories([unreadable])
    assert str(caught.value) == (
        f"repository path is not a valid directory: '{unreadable}': it cannot be read (Permission denied)"
    )
