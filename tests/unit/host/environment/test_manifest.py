"""The file in which an environment says what it is."""

import json

import pytest

from pybackend.environment.manifest import (
    MANIFEST_FILENAME,
    EnvironmentManifest,
    PackedPackage,
    host_libc,
    host_platform,
    read_manifest,
)
from pybackend.errors import ModelEnvironmentError

FULL = EnvironmentManifest(
    platform="linux-x86_64",
    python="3.13.0",
    libc="glibc 2.28",
    free_threaded=True,
    packages=(PackedPackage("numpy", "2.1.0", "pypi"), PackedPackage("python", "3.13.0")),
    variables={"OMP_NUM_THREADS": "1"},
    content_hash="abc",
    lock="numpy==2.1.0\n",
    created_by="pybackend 0.1",
)


@pytest.mark.parametrize("manifest", [FULL, EnvironmentManifest("linux-aarch64", "3.8.1")], ids=["full", "short"])
def test_what_was_written_is_read(manifest, tmp_path):
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest


def test_an_environment_needs_none(tmp_path):
    assert read_manifest(tmp_path) is None


def test_a_newer_one_is_refused_with_both_formats(tmp_path):
    document = json.loads(FULL.to_json()) | {"format_version": 7}
    (tmp_path / MANIFEST_FILENAME).write_text(json.dumps(document))
    with pytest.raises(ModelEnvironmentError, match="has format 7, this host reads format 1"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        '{"format_version": 1, "python": 3}',
        '{"format_version": 1, "packages": [1]}',
        '{"format_version": 1, "packages": 1}',
        '{"format_version": 1, "variables": []}',
        "\ud83d",
    ],
    ids=["empty", "list", "null", "no_version", "deep", "number", "packages", "package", "variables", "no_text"],
)
def test_what_is_none_is_refused(text, tmp_path):
    (tmp_path / MANIFEST_FILENAME).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelEnvironmentError, match="is not a manifest of an environment"):
        read_manifest(tmp_path)


def test_one_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / MANIFEST_FILENAME).mkdir()
    with pytest.raises(ModelEnvironmentError, match=f"cannot read .*{MANIFEST_FILENAME}: Is a directory"):
        read_manifest(tmp_path)


def test_this_machine_has_a_platform_and_a_libc():
    assert host_platform().startswith("linux-")
    assert host_libc() == "" or host_libc().startswith("glibc 2.")
