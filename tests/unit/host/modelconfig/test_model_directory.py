"""Which directories of a model are versions."""

import os
from pathlib import Path

import pytest

from pybackend.errors import ModelLoadError
from pybackend.modelconfig.model_directory import scan_versions, similar_file


def test_versions_are_numeric_directories(tmp_path: Path) -> None:
    for name in ("10", "2", "0", "warmup", "initial_state", "configs", "__pycache__", ".hidden", "9223372036854775807"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").write_text("a file")
    scan = scan_versions(tmp_path)
    assert list(scan.versions) == [0, 2, 10, 9223372036854775807]
    assert scan.versions[10] == tmp_path / "10"
    assert scan.warnings == ()


@pytest.mark.parametrize(
    "name", ["x", "12abc", "-1", "+1", "1.0", " 1", "٣", "²", "9223372036854775808", "1" * 200, "1_0"]
)
def test_other_names_are_passed_over_with_a_warning(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    scan = scan_versions(tmp_path)
    assert not scan.versions
    assert scan.warnings == (
        f"ignore version directory '{name}' which fails to convert to integral number, in {tmp_path}",
    )


@pytest.mark.parametrize("name", ["01", "00", "007"])
def test_leading_zeros_are_passed_over_with_a_warning(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    scan = scan_versions(tmp_path)
    assert not scan.versions
    assert scan.warnings == (
        f"ignore version directory '{name}' which has a leading zero, in {tmp_path}; rename it to '{int(name)}'",
    )


def test_names_that_are_no_text_can_be_logged(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    (warning,) = scan_versions(tmp_path).warnings
    assert warning.encode().startswith("ignore version directory '\ufffd' which".encode())


def test_links_count_where_they_lead_to_directories(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "1").mkdir()
    (tmp_path / "1").symlink_to("..data/1")
    (tmp_path / "2").symlink_to("nowhere")
    (tmp_path / "3").symlink_to("3")
    assert list(scan_versions(tmp_path).versions) == [1]


def test_a_directory_that_cannot_be_read(tmp_path: Path, snapshot) -> None:
    with pytest.raises(ModelLoadError) as caught:
        scan_versions(tmp_path / "missing")
    assert caught.value.message == snapshot


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Model.py"], "Model.py"),
        (["modle.py", "weights.bin"], "modle.py"),
        (["model.pyc"], "model.pyc"),
        (["weights.bin"], ""),
        ([], ""),
    ],
)
def test_a_file_of_a_similar_name(tmp_path: Path, names: list[str], expected: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert similar_file(tmp_path, "model.py") == expected


def test_no_similar_file_is_sought_behind_a_link_or_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "Model.py").touch()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    (tmp_path / "Model.py").symlink_to(tmp_path / "there" / "Model.py")
    assert similar_file(tmp_path / "link", "model.py") == ""
    assert similar_file(tmp_path / "gone", "model.py") == ""
    assert similar_file(tmp_path, "model.py") == ""
