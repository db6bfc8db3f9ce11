"""Namespaces: the repositories of a server on which several models may have the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from pybackend.modelconfig.full_name import SEPARATOR, full_name


class Namespaces:
    """The namespaces of a server.

    Args:
        paths: the repositories: a directory or a URL each.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        paths = tuple(dict.fromkeys(paths))
        self._prefixes = tuple(full_name(path, "") for path in paths)
        self._by_part = _unique_parts(paths)

    def split(self, name: str) -> tuple[str, str]:
        """The namespace and the name in a full name; ``""`` and the text itself if it begins with no namespace."""
        for prefix in self._prefixes:
            if name.startswith(prefix):
                return prefix.removesuffix(SEPARATOR), name.removeprefix(prefix)
        return "", name

    def expand(self, name: str) -> str:
        """The full name that ``<part of a namespace>::<name>`` stands for; the text itself if it is none.

        A part of a namespace's path stands for the namespace if no other path has that part; a path's last part comes
        first.
        """
        head, separator, last = name.rpartition(SEPARATOR)
        namespace = self._by_part.get(head)
        return full_name(namespace, last) if separator and namespace else name

    def named(self, name: str, models: Container[str]) -> list[str]:
        """The full names of all models of a name."""
        return [full for prefix in self._prefixes if (full := prefix + name) in models]


def _unique_parts(paths: Iterable[str]) -> dict[str, str]:
    parts = {path: [part for part in path.split("/") if part and not part.endswith(":")] for path in paths}
    last = Counter(found[-1] for found in parts.values() if found)
    every = Counter(part for found in parts.values() for part in set(found))
    unique = {part: path for path, found in parts.items() for part in found if every[part] == 1 and part not in last}
    return unique | {found[-1]: path for path, found in parts.items() if found and last[found[-1]] == 1}
