"""One repository in cloud storage as it was last listed: its models, the files' digests, and whether storage answers."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pybackend.repository.remote import LATE_S, Listing, moment
from pybackend_addons.storage.bucket import BadNameError, Bucket, Patience, StorageError, Unreachable
from pybackend_addons.storage.object_cache import KnownNames, ObjectCache
from pybackend_addons.storage.url import RepositoryUrl

log = logging.getLogger(__name__)

_NAMES_KEPT_S = 60.0
"""The time of the last listing is written down this often; changed names are at once."""

_PATIENCE_WITH_CACHE_S = 10.0
_NO_PATIENCE = Patience(total_s=0)


class ListedRepository:
    """The knowledge of one repository."""

    def __init__(self, url: RepositoryUrl, bucket: Bucket, cache: ObjectCache, cache_directory: Path) -> None:
        self.url = url
        self.names: frozenset[str] = frozenset()  # of its models
        self.trouble = ""  # why the last attempt to list the repository has failed, ``""`` if it has not
        self.digests: Mapping[str, int] = {}  # of its models, by name; they change with the models' files
        self.is_late = False  # a listing takes longer than :data:`LATE_S`
        self._bucket = bucket
        self._patience = bucket.patience
        self._cache = cache
        self._cache_directory = cache_directory
        self._files_listed = 0
        self._listed_s = self._names_kept_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    @property
    def listing(self) -> Listing:
        doubt = self.trouble or (f"{self.url.text} has not answered for {LATE_S:g} s" if self.is_late else "")
        return Listing(self.url.text, self.names, self._files_listed, self.digests, self._listed_s, doubt)

    async def start(self) -> None:
        """List the repository for the first time. If storage does not answer, the last listing on this machine will do.

        Raises StorageError: it cannot be listed, and never was.
        """
        known = await asyncio.to_thread(self._cache.kept_names)
        if known is not None:
            total_s = min(self._patience.total_s, _PATIENCE_WITH_CACHE_S)
            self._bucket.patience = replace(self._patience, total_s=total_s)
        try:
            await self.look()
        except Unreachable as error:
            if known is None:
                raise
            self.names, self._listed_s = frozenset(known.names), known.listed_s
            log.warning(
                "%s. The server starts with the models in its cache %s, as the repository was at %s, and goes on asking",
                error,
                self._cache_directory,
                moment(known.listed_s),
            )

    async def look(self) -> None:
        """Find out which models there are. Callers that come while this runs share its outcome."""
        await asyncio.shield(self.begin_look())

    def begin_look(self) -> asyncio.Task[None]:
        """The same in a task, for callers that do not wait until the end."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._looked)
        return self._looking

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking, self.is_late = None, False
        if not task.cancelled():
            task.exception()  # its callers have it

    async def _look(self) -> None:
        try:
            names = await self._bucket.names()
        except StorageError as error:
            if not self.trouble and self._listed_s:
                log.warning("%s. The index shows the repository as it was at %s", error, moment(self._listed_s))
            self._fail(error)
            raise
        await self._listed(names)

    def _fail(self, error: StorageError) -> None:
        """Note that the repository cannot be listed. One attempt must do then, until one succeeds."""
        self.trouble, self._bucket.patience = str(error), _NO_PATIENCE

    async def _listed(self, names: Collection[str]) -> None:
        if self.trouble:
            log.info("%s answers again", self.url.text)
        self._bucket.patience = self._patience
        self.trouble, before = "", self.names
        self.names, self._listed_s = frozenset(names), time.time()
        if self.names != before or self._listed_s - self._names_kept_s > _NAMES_KEPT_S:
            await asyncio.to_thread(self._keep_names)

    def _keep_names(self) -> None:
        self._names_kept_s = self._listed_s
        try:
            self._cache.keep_names(KnownNames(tuple(sorted(self.names)), self._listed_s))
        except OSError as error:
            log.warning(
                "%s cannot be written, so a start without %s would fail: %s",
                self._cache_directory,
                self.url.text,
                error,
            )

    async def read_digests(self) -> dict[str, int]:
        """For each model, a number that changes when one of its files does."""
        try:
            digests = await self._bucket.digests()
        except StorageError as error:
            self._fail(error)
            raise
        self.digests = digests
        self._files_listed += 1
        await self._listed(digests)
        return digests

    async def may_have(self, name: str) -> bool:
        """False if there is no model of this name, or none is known and storage does not say soon whether there is."""
        if name in self.names:
            return True
        if self.trouble or self.is_late:
            return False
        try:
            async with asyncio.timeout(LATE_S):
                return bool(await self._bucket.files(name))
        except BadNameError:
            return True
        except (StorageError, TimeoutError):
            log.warning("%s does not say whether it has a model '%s', and is taken to have none", self.url.text, name)
            return False
