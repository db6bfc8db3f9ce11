"""Fetches an archive with models and unpacks it: ``fetch.py URL DIRECTORY [SHA256]``."""

import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator


def _plain(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Files and directories that stay below the directory: all that is taken where tarfile has no filters (before CPython 3.11.4)."""
    for member in tar:
        inside = not member.name.startswith("/") and ".." not in member.name.split("/")
        if not inside or not (member.isreg() or member.isdir()):
            sys.exit(f"the archive {url} has {member.name!r}, which is no file or directory in it")
        yield member


url, directory, wanted = [*sys.argv[1:], ""][:3]
with tempfile.TemporaryFile(dir=directory) as archive:
    with urllib.request.urlopen(url, timeout=60) as answer:
        shutil.copyfileobj(answer, archive)
    archive.seek(0)
    found = hashlib.file_digest(archive, "sha256").hexdigest()
    if wanted and found != wanted:
        sys.exit(f"the archive {url} has the SHA-256 {found}, expected {wanted}: correct repository.sha256")
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(directory, filter="data")
        else:
            tar.extractall(directory, _plain(tar))  # noqa: S202  they are checked
