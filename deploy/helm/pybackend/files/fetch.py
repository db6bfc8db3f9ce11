"""Fetches an archive with models and unpacks it: ``fetch.py URL DIRECTORY [SHA256]``."""

import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request

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
        tar.extractall(directory, filter="data")
