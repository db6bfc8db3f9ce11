"""The server's row of :mod:`pybackend.plugins`: repositories by the URLs of cloud storage."""

from pybackend.repository.remote import RemoteStorage
from pybackend_addons.storage.mirrors import Mirrors, cache_directories
from pybackend_addons.storage.url import parse_url

STORAGE = RemoteStorage(check=parse_url, cache_directories=cache_directories, repositories=Mirrors)
