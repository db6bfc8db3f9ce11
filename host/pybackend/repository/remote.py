"""Repositories elsewhere: what the server knows of them, and what it asks of the package that reaches them."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import localtime, strftime

LATE_S = 2.0
"""A listing that takes longer is not waited for where the one before will do."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)

Choose = Callable[[Path, Collection[int]], Collection[int]]
"""Chooses versions to serve: takes a directory with the model's configuration, and the versions that there are.
Blocking."""

InUse = Callable[[Path], Collection[int]]
"""The versions that are alive and were loaded from a model's directory."""


def is_url(text: str) -> bool:
    """True for a URL, False for the path of a directory."""
    return _URL.fullmatch(text) is not None


def moment(time_s: float) -> str:
    """A time for messages, on the clock of this machine."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(time_s))


@dataclass(frozen=True)
class Listing:
    """A repository when it was last listed."""

    place: str  # its URL, for messages
    names: Collection[str]  # of its models
    number: int = 0  # how often all files were listed so far
    # for each model, a number that changed when one of its files did; from the last of those listings
    digests: Mapping[str, int] = field(default_factory=dict)
    listed_s: float = 0.0  # when the names were listed, in seconds since 1970
    doubt: str = ""  # why the names may be others by now, as a sentence; ``""`` while the storage answers


def _nothing(_directory: Path) -> Collection[int]:
    return ()


class RemoteRepositories:
    """The repositories elsewhere of one server, each with a local directory from which its models are loaded.

    This class has none, as a server whose models are all on this machine; that of a package which reaches some derives
    from it. The server opens and closes it.

    Attributes:
        in_use: set before models are loaded.
    """

    def __init__(self) -> None:
        self.in_use: InUse = _nothing

    @property
    def directories(self) -> tuple[Path, ...]:
        """The local directory of each repository; after :meth:`open`."""
        return ()

    @property
    def listings(self) -> Mapping[Path, Listing]:
        """The models of each repository when it was last listed, by its local directory."""
        return {}

    async def open(self) -> None:
        """List the repositories for the first time, and make the local directories.

        Raises ServerError: a repository cannot be listed, nor was on this machine, or a cache is not writable.
        """

    def close(self) -> None:
        """Remove the local directories; what was downloaded stays in the cache. Blocking."""

    async def look(self) -> None:
        """Find out which models there are now."""

    async def look_briefly(self) -> None:
        """The same without errors.

        A repository that does not answer soon, or did not the last time, is not waited for.
        """

    async def ask_again(self) -> None:
        """Ask the repositories that do not answer, until cancelled: once one does, its listing is in use again."""

    async def digests(self) -> Mapping[Path, int]:
        """For each model, by its local directory, a number that changes when one of its files does."""
        return {}

    async def follow(self, period_s: float, settle_s: float, on_change: Callable[[], None]) -> None:
        """List all files of each repository periodically until cancelled. One that does not answer delays no other.

        The local files of models that a repository has no longer, and that are not used, are removed. The listing after
        one with changes comes after ``settle_s``; both call ``on_change``.
        """

    async def fetch(
        self,
        name: str,
        choose: Choose,
        place: str = "",
        directory: Path | None = None,
        *,
        is_elsewhere: bool = False,
    ) -> None:
        """Bring a model's local directory up to date, if the model is in one of these repositories.

        Raises ModelLoadError: it cannot be downloaded; its directory is as before.

        Args:
            place: the URL of its repository, ``""`` for all of them.
            directory: where the model is known to be, None to look for it in all of them.
            is_elsewhere: a local repository has it, so storage that does not answer is not needed.
        """

    async def fetch_configuration(self, name: str, place: str = "") -> None:
        """Bring the configuration of a model of these repositories, unless part of the model was brought before.

        Raises ModelLoadError: it cannot be downloaded.
        """

    async def tidy(self, directory: Path) -> None:
        """Remove versions of a model that were served from a local directory and are not used any more."""


@dataclass(frozen=True)
class RemoteStorage:
    """The way to repositories by their URLs, as a row of :mod:`pybackend.plugins`."""

    check: Callable[[str], object]  # raises ServerError: the URL has a form that is not known
    # the directories that keep what is downloaded from these URLs; in one that the operator has chosen, if that is not
    # None
    cache_directories: Callable[[Sequence[str], Path | None], Sequence[Path]]
    # the repositories of a server, likewise. Raises ServerError: a library is missing, or credentials cannot be used
    repositories: Callable[[Sequence[str], Path | None], RemoteRepositories]
