"""The names that unpacking an archive makes, and where its links lead: kept in memory, asked before anything is written."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.errors import ModelEnvironmentError

_MOST_LINKS_IN_A_PATH = 40
"""The kernel follows no more."""

_MOST_PATH_CHARACTERS = 4096

Refusal = Callable[[str], ModelEnvironmentError]


class FileTree:
    """What an archive's members make, one after the other.

    Args:
        refusal: makes what is raised for a member that must not be unpacked, from the reason.
    """

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._directories = {""}
        self._files: set[str] = set()
        self._links: dict[str, str] = {}

    def checked(self, name: str) -> str:
        """A member's name without ``./`` and the like; empty for the directory that all is unpacked in.

        Raises:
            ModelEnvironmentError: it leads elsewhere.
        """
        if name.startswith("/"):
            raise self._refusal(f"Path is absolute: '{name}'")
        if "\0" in name or len(name) > _MOST_PATH_CHARACTERS:
            raise self._refusal(f"Path is no name of a file: {name[:100]!r}")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise self._refusal(f"Path contains '..': '{name}'")
        return "/".join(parts)

    def add_directory(self, path: str) -> None:
        """A directory comes, again perhaps."""
        self._enter(path)
        if path in self._files or path in self._links:
            raise self._refusal(f"'{path}' is both a directory and something else")
        self._directories.add(path)

    def add_file(self, path: str) -> None:
        """A file comes, in place of an earlier one perhaps."""
        self._enter_leaf(path)
        self._files.add(path)

    def add_link(self, path: str, target: str) -> None:
        """A symbolic link comes. Where it leads is known at the end: links may be part of its way."""
        if target.startswith("/"):
            raise self._refusal(
                f"the link '{path}' leads to an absolute path, '{target}', which the environment does not bring along. "
                "A virtual environment is served as a directory, or packed by `pybackend pack DIRECTORY`"
            )
        if not target or "\0" in target or len(target) > _MOST_PATH_CHARACTERS:
            raise self._refusal(f"the link '{path}' leads nowhere")
        self._enter_leaf(path)
        self._links[path] = target

    def add_hard_link(self, path: str, target: str) -> None:
        """Another name of an earlier file comes."""
        if target not in self._files or target == path:
            raise self._refusal(f"'{path}' is another name of '{target}', which is no file before it")
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
            ModelEnvironmentError: one leads out.
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
                    return False  # nobody can follow it
                at.pop()
                ahead.extend(target.split("/")[::-1])
        return False
