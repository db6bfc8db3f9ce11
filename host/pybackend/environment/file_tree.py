"""Paths and link targets that unpacking an archive would create, checked in memory before anything is written."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.errors import ModelEnvironmentError

_MOST_LINKS_IN_A_PATH = 40
"""The kernel's limit on links in one path."""

_MOST_PATH_CHARACTERS = 4096

Refusal = Callable[[str], ModelEnvironmentError]


class FileTree:
    """The files created by an archive's members, in order.

    Args:
        refusal: makes the error for a member that must not be unpacked, from the reason.
    """

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._directories = {""}
        self._files: set[str] = set()
        self._links: dict[str, str] = {}

    def checked(self, name: str) -> str:
        """A member's name without ``./`` and the like; empty for the target directory itself.

        Raises:
            ModelEnvironmentError: the name leads outside.
        """
        if name.startswith("/"):
            raise self._refusal(f"Path is absolute: '{name}'")
        if "\0" in name or len(name) > _MOST_PATH_CHARACTERS:
            raise self._refusal(f"Path is not a valid file name: {name[:100]!r}")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise self._refusal(f"Path contains '..': '{name}'")
        return "/".join(parts)

    def add_directory(self, path: str) -> None:
        """Add a directory, which may exist already."""
        self._enter(path)
        if path in self._files or path in self._links:
            raise self._refusal(f"'{path}' is both a directory and something else")
        self._directories.add(path)

    def add_file(self, path: str) -> None:
        """Add a file, which may replace an earlier one."""
        self._enter_leaf(path)
        self._files.add(path)

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link. Its target is checked at the end, because it may lead through other links."""
        if target.startswith("/"):
            raise self._refusal(
                f"the link '{path}' leads to an absolute path, '{target}', which is not part of the environment. "
                "A virtual environment is served as a directory, or packed by `pybackend pack DIRECTORY`"
            )
        if not target or "\0" in target or len(target) > _MOST_PATH_CHARACTERS:
            raise self._refusal(f"the link '{path}' has an empty target")
        self._enter_leaf(path)
        self._links[path] = target

    def add_hard_link(self, path: str, target: str) -> None:
        """Add a second name of an earlier file."""
        if target not in self._files or target == path:
            raise self._refusal(f"'{path}' is a hard link to '{target}', which is not an earlier file")
        self._enter_leaf(path)
        self._files.add(path)

    def _enter_leaf(self, path: str) -> None:
        self._enter(path)
        if path in self._directories:
            raise self._refusal(f"'{path or '.'}' is both a directory and something else")
        self._files.discard(path)
        self._links.pop(path, None)

    def _enter(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        while parent not in self._directories:
            if parent in self._links:
                raise self._refusal(f"Path leads through a symbolic link: '{path}'")
            if parent in self._files:
                raise self._refusal(f"'{parent}' is both a directory and something else")
            self._directories.add(parent)
            parent = parent.rpartition("/")[0]

    def check_links(self) -> None:
        """Follow every link.

        Raises:
            ModelEnvironmentError: a link leads outside.
        """
        for path, target in self._links.items():
            if self._leads_out(path):
                raise self._refusal(f"the link '{path}' leads out of the environment, to '{target}'")

    def _leads_out(self, path: str) -> bool:
        at: list[str] = []
        ahead = path.split("/")[::-1]
        links = 0
        while ahead:
            part = ahead.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                if not at:
                    return True
                at.pop()
                continue
            at.append(part)
            target = self._links.get("/".join(at))
            if target is not None:
                links += 1
                if links > _MOST_LINKS_IN_A_PATH:
                    return False  # a dangling link, or one that loops
                at.pop()
                ahead.extend(target.split("/")[::-1])
        return False
