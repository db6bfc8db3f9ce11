"""Finds the model that a name stands for, when several repositories, which are then namespaces, may have a model of that name."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from pybackend.errors import AmbiguousModelError, ErrorCode
from pybackend.modelconfig.schema import NAMESPACE_SEPARATOR, full_name
from pybackend.repository.entry import ModelEntry


class Namespaces:
    """The namespaces of a server: repositories that may have models of the same name."""

    def __init__(self, paths: Iterable[str]) -> None:
        paths = tuple(dict.fromkeys(paths))
        self._prefixes = tuple(full_name(path, "") for path in paths)
        self._by_part = _unique_parts(paths)

    def split(self, name: str) -> tuple[str, str]:
        """The namespace and the name in a full name; ``""`` and the text itself if it begins with no namespace."""
        for prefix in self._prefixes:
            if name.startswith(prefix):
                return prefix.removesuffix(NAMESPACE_SEPARATOR), name.removeprefix(prefix)
        return "", name

    def expand(self, name: str) -> str:
        """The full name that ``<part of a namespace>::<name>`` stands for; the text itself if it is none.

        A part of a namespace's path stands for the namespace if no other path has that part; a path's last part comes
        first.
        """
        head, separator, last = name.rpartition(NAMESPACE_SEPARATOR)
        namespace = self._by_part.get(head)
        return full_name(namespace, last) if separator and namespace else name

    def named(self, name: str, models: Container[str]) -> list[str]:
        return [full for prefix in self._prefixes if (full := prefix + name) in models]


def _unique_parts(paths: Iterable[str]) -> dict[str, str]:
    parts = {path: [part for part in path.split("/") if part and not part.endswith(":")] for path in paths}
    last = Counter(found[-1] for found in parts.values() if found)
    every = Counter(part for found in parts.values() for part in set(found))
    unique = {part: path for path, found in parts.items() for part in found if every[part] == 1 and part not in last}
    return unique | {found[-1]: path for path, found in parts.items() if found and last[found[-1]] == 1}


_MOST_NAMED = 10


class ModelNames:
    """The names of a server's models.

    A name may be a full name, or leave the namespace out if only one model has it. Models and ensembles prefer models
    in the same namespace. Without namespaces, every name stands for itself. The entries are read in their current
    state.
    """

    def __init__(self, entries: Mapping[str, ModelEntry], namespaces: Namespaces | None) -> None:
        self._entries = entries
        self.namespaces = namespaces
        self._found: dict[str, str] = {}
        """Full names by other names for the same models, kept because clients send these with every request."""

    def on_change(self) -> None:
        """Call this after a model became known, or is not known any more."""
        self._found.clear()

    def split(self, name: str) -> tuple[str, str]:
        """The namespace and the name in a full name; see :meth:`Namespaces.split`."""
        return ("", name) if self.namespaces is None else self.namespaces.split(name)

    def known(self, name: str, home: str = "") -> str:
        """The full name of a known model; the text itself if no model has this name.

        Models that were unloaded count only if no other has the name.

        Raises AmbiguousModelError: several models have this name. ``home`` is the namespace of the model that sends it,
        ``""`` for a client.
        """
        spaces, entries = self.namespaces, self._entries
        if spaces is None:
            return name
        if home and self._counts(own := full_name(home, name)):
            return own
        kept = self._found.get(name)
        if kept is not None:
            return kept
        if name in entries:
            return name
        found = spaces.named(name, entries)
        if len(found) > 1:
            return only(name, [each for each in found if self._counts(each)] or found)
        full = found[0] if found else spaces.expand(name)
        if full in entries:
            self._found[name] = full
        return full

    def to_load(self, name: str, home: str, models: Collection[str]) -> list[str]:
        """The full names of the models that a load request means, all of this name.

        The text itself for a model that is new.
        """
        spaces = self.namespaces
        if spaces is None:
            return [name]
        if home and ((own := full_name(home, name)) in models or self._counts(own)):
            return [own]
        if name in models:
            return [name]
        found = dict.fromkeys(spaces.named(name, models))
        found |= dict.fromkeys(each for each in spaces.named(name, self._entries) if self._counts(each))
        return list(found) or [self.known(name)]

    def to_unload(self, name: str, home: str) -> list[str]:
        """The full names of the models that an unload request means, as for :meth:`to_load`."""
        spaces = self.namespaces
        if spaces is None:
            return [name]
        try:
            return [self.known(name, home)]
        except AmbiguousModelError:
            return [each for each in spaces.named(name, self._entries) if self._counts(each)]

    def at_start(self, names: Iterable[str], models: Collection[str]) -> set[str]:
        """The full names of the models to load at start: a name without a namespace stands for all models of that name."""
        spaces = self.namespaces
        if spaces is None:
            return set(names)
        wanted = set()
        for name in names:
            found = [name] if name in models else spaces.named(name, models)
            wanted.update(found or [spaces.expand(name)])
        return wanted

    def parts(self, names: Iterable[str], home: str, models: Collection[str] = ()) -> tuple[str, ...]:
        """The full names of the models that an ensemble's steps name, each once; see :meth:`part`."""
        return tuple(dict.fromkeys(self.part(name, home, models) for name in names))

    def part(self, name: str, home: str, models: Collection[str] = ()) -> str:
        """The full name of the model that a step of an ensemble names; the text itself if there is none, or several.

        A model in the ensemble's own namespace comes first, then one that is known, then one in the repositories.
        """
        spaces = self.namespaces
        if spaces is None:
            return name
        if home and ((own := full_name(home, name)) in models or self._counts(own)):
            return own
        try:
            found = self.known(name)
        except AmbiguousModelError:
            return name
        if found in self._entries:
            return found
        stored = spaces.named(name, models)
        return stored[0] if len(stored) == 1 else found

    def may_mean(self, name: str, model: str) -> bool:
        """True if a name in an ensemble's step may stand for a model, now or after another change."""
        if self.namespaces is None or name == model:
            return name == model
        return self.split(model)[1] == name.rpartition(NAMESPACE_SEPARATOR)[2]

    def _counts(self, model: str) -> bool:
        entry = self._entries.get(model)
        return entry is not None and not entry.is_unloaded


def only(name: str, found: Sequence[str]) -> str:
    """The one full name that a name stands for. Raises AmbiguousModelError: there are several."""
    if len(found) > 1:
        shown = ", ".join(f"'{each}'" for each in found[:_MOST_NAMED])
        raise AmbiguousModelError(
            f"There are {len(found)} identifiers of model '{name}' in global map, model namespace must be provided to "
            f"resolve ambiguity. Name one of them: {shown}",
            ErrorCode.INVALID_ARG,
        )
    return found[0]
