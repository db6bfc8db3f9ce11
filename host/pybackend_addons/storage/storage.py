"""The server's row of :mod:`pybackend.plugins`: repositories by the URLs of cloud storage."""

from collections.abc import Sequence
from pathlib import Path

from pybackend.repository.remote import RemoteStorage
from pybackend_addons.storage.mirrors import Mirrors, cache_directories
from pybackend_addons.storage.url import parse_url


class CloudStorage:
    """See :class:`RemoteStorage`."""

    def check(self, url: str) -> None:
        """Raises ServerError: the URL has a form that is not known."""
        parse_url(url)

    def cache_directories(self, urls: Sequence[str], chosen: Path | None) -> Sequence[Path]:
        return cache_directories(urls, chosen)

    def repositories(self, urls: Sequence[str], cache_directory: Path | None) -> Mirrors:
        """Raises ServerError: the library is missing, or credentials cannot be used."""
        return Mirrors(urls, cache_directory)


STORAGE: RemoteStorage = CloudStorage()
