"""The listings in the cache of cloud storage, whatever lies in their place."""

import os

import pytest

from pybackend_addons.storage.object_cache import KnownNames, ObjectCache
from pybackend_addons.storage.url import parse_url


def linked_to_a_device(path):
    path.symlink_to("/dev/full")


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "other types": lambda path: path.write_bytes(b'{"names": 5, "listed_s": []}'),
    "nested": lambda path: path.write_bytes(b'{"names": ' + b"[" * 100_000),
    "a directory": os.mkdir,
    "a FIFO": os.mkfifo,
    "a device": linked_to_a_device,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_listing_is_none(tmp_path, damage):
    cache = ObjectCache(tmp_path, parse_url("s3://bucket/models"))
    cache.open()
    cache.keep_names(KnownNames(("a", "b"), 5.0))
    assert cache.kept_names() == KnownNames(("a", "b"), 5.0)
    (listing,) = cache.directory.glob("names.json")
    listing.unlink()
    damage(listing)
    assert cache.kept_names() is None
