"""The known models by name, and what clients may ask about them. Reads only; :mod:`.changes` loads and unloads."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pybackend.errors import (
    AmbiguousModelError,
    ErrorCode,
    InferenceError,
    ModelLoadError,
    NotServingError,
    UnknownModelError,
)
from pybackend.model.ensemble.model import EnsembleModel
from pybackend.model.host import NotLoaded
from pybackend.model.model import Model, ModelState, not_ready
from pybackend.modelconfig.ensemble import circle_of, part_names_on_disk
from pybackend.pools import Pools
from pybackend.repository.entry import ModelEntry, ModelStatus
from pybackend.repository.layout import DUPLICATE_REASON
from pybackend.repository.names import ModelNames, Namespaces

MOST_FAILURES = 10_000
"""Models without an entry whose failures are kept: an ensemble's configuration may name any parts."""

LONGEST_VERSION_DIGITS = 19
"""Versions are signed 64-bit numbers; longer text is invalid, and ``int`` raises on more than 4,300 digits."""


class ModelCatalogue:
    """The known models, each with its versions."""

    def __init__(self, config_name: str, namespaces: Namespaces | None = None, pools: Pools | None = None) -> None:
        self.entries: dict[str, ModelEntry] = {}  # by full name, in the current state
        self.names = ModelNames(self.entries, namespaces)
        self.ensembles = Ensembles(self.entries, config_name, self.names)
        self._pools = pools
        self._failures: dict[str, NotLoaded] = {}
        """Those of models without an entry."""

    def find(self, name: str, version: str = "") -> Model:
        """The version that answers a request.

        A version ``""`` stands for the one that the model's traffic rules choose, else for the highest ready one.
        """
        entry = self.entry(name)
        if not version:
            if entry.traffic is not None:
                return entry.traffic.next_version() or _no_version(entry)
            for model in entry.newest_first:
                if model.state is ModelState.READY:
                    return model
            for model in entry.newest_first:
                if model.failure is not None:
                    raise _not_serving(model.failure)
            return _no_version(entry)
        found = entry.versions.get(_version_number(version))
        if found is None:
            raise UnknownModelError(
                f"Request for unknown model: '{name}' version {version} is not found", ErrorCode.NOT_FOUND
            )
        if found.state is not ModelState.READY:
            if found.failure is not None:
                raise _not_serving(found.failure)
            raise not_ready(name, version, found.loading)
        return found

    def representative(self, name: str, version: str = "") -> Model:
        """The version that stands for a model in documents; otherwise as :meth:`find`."""
        traffic = None if version else self.entry(name).traffic
        if traffic is None:
            return self.find(name, version)
        return traffic.representative() or _no_version(self.entry(name))

    def hurry(self, name: str, version: str = "") -> None:
        """A request needs versions of a known model, which do not serve: try soon whatever may make them."""
        for model in self.known_versions(name, version):
            if model.state is ModelState.UNAVAILABLE:
                model.hurry()

    def absence(self, name: str, home: str = "") -> NotLoaded:
        """The reason why no version of a model serves.

        A model of the namespace ``home`` comes before others of its name.
        """
        try:
            known = self.names.known(name, home)
        except AmbiguousModelError as error:
            return NotLoaded(error.message, known=False)
        entry = self.entries.get(known)
        if entry is not None:
            return entry.absence()
        return self._failures.get(known) or NotLoaded(_elsewhere(known, self._pools), known=False)

    def known_versions(self, name: str, version: str = "") -> list[Model]:
        """A model's version in any state; all versions for ``""``; empty if there is no such model or version."""
        number = _version_number(version) if version else None
        entry = self.entries.get(self.names.known(name))
        return [] if entry is None else [model for known, model in entry.versions.items() if number in {None, known}]

    def only_name(self) -> str | None:
        """The name of the only model; None if there are none or several."""
        return next(iter(self.entries.values())).name if len(self.entries) == 1 else None

    def known_name(self, name: str) -> str:
        """The full name of a model, serving or not; the name itself if several have it, ``""`` if none has."""
        try:
            full = self.names.known(name)
        except AmbiguousModelError:
            return name
        return full if full in self.entries else ""

    @property
    def serving_names(self) -> list[str]:
        """The full names of the models with a serving version, sorted."""
        return sorted(name for name, entry in self.entries.items() if entry.ready_versions())

    def is_broken(self, name: str) -> bool:
        """True if there is one model of this name, and it has failed."""
        try:
            known = self.names.known(name)
        except AmbiguousModelError:
            return False
        entry = self.entries.get(known)
        return self._why_unreadable(known) != "" if entry is None else entry.is_broken

    def entry(self, name: str) -> ModelEntry:
        entry = self.entries.get(name) or self.entries.get(self.names.known(name))
        if entry is None:
            code = ErrorCode.NOT_FOUND if self.names.namespaces is None else ErrorCode.INVALID_ARG  # as the reference
            raise UnknownModelError(f"Request for unknown model: '{name}' is not found", code)
        return entry

    def new_entry(self, name: str, *, as_part: bool = False) -> ModelEntry:
        """Make the entry of a model, which is known from now on."""
        namespace, plain = self.names.split(name)
        entry = self.entries[name] = ModelEntry(plain, as_part=as_part, namespace=namespace)
        self._failures.pop(name, None)
        self.names.on_change()
        return entry

    def forget(self, name: str) -> None:
        """Remove what is known of a model, given by its full name."""
        self._failures.pop(name, None)
        self.entries.pop(name, None)
        self.names.on_change()

    def ready_versions(self, name: str) -> list[Model]:
        """Versions of a model that accept requests, ascending; empty if there is no such model."""
        entry = self.entries.get(self.names.known(name))
        return [] if entry is None else entry.ready_versions()

    def statistics_of(self, name: str, version: str = "") -> list[Model]:
        """Ready versions, ascending, in the terms of requests for statistics.

        An empty text stands for all models, or all versions.
        """
        if not name:
            return [model for model in self.models() if model.state is ModelState.READY]
        number = _version_number(version) if version else None
        ready = self.ready_versions(name)
        if not ready:
            raise InferenceError(f"requested model '{name}' is not available", ErrorCode.INVALID_ARG)
        found = [model for model in ready if number is None or model.version == str(number)]
        if not found:
            raise InferenceError(f"requested model version is not available for model '{name}'", ErrorCode.INVALID_ARG)
        return found

    def models(self) -> Iterator[Model]:
        """Every known version, sorted by full name and number."""
        for _, entry in sorted(self.entries.items()):
            yield from entry.versions.values()

    async def ask_models(self) -> None:
        """Ask the models that have an ``is_ready``, so that :attr:`Health.own_objection` is as a probe would find it now.

        One that hangs in it has answered: nobody waits for it again.
        """
        healths = [model.health for model in self.models()]
        asked = [health for health in healths if health.has_is_ready and not health.keeps_askers_waiting]
        await asyncio.gather(*(health.not_ready_reason() for health in asked))

    @property
    def all_ready(self) -> bool:
        """True if every known model serves, or was deliberately unloaded."""
        return all(entry.is_ready for entry in self.entries.values())

    def table(self) -> list[ModelStatus]:
        """The state of every model, for the terminal."""
        return [row for _, entry in sorted(self.entries.items()) for row in entry.rows("-")]

    def known(self) -> Iterator[tuple[ModelStatus, Model | None]]:
        """A row for each known version, and for each model without one that has failed, with the version."""
        for name in sorted({*self.entries, *self._failures}):
            entry = self.entries.get(name)
            if entry is not None:
                yield from zip(entry.rows(), entry.versions.values() or (None,), strict=True)
            elif reason := self._why_unreadable(name):
                yield self._row(name, ModelState.UNAVAILABLE.value, reason), None

    def note_failure(self, name: str, failure: NotLoaded) -> None:
        """Note why a load has failed, until the model is loaded or unloaded."""
        entry = self.entries.get(name)
        if entry is not None:
            entry.not_loaded = failure
            return
        self._failures[name] = failure
        if len(self._failures) > MOST_FAILURES:
            del self._failures[next(iter(self._failures))]

    def _why_unreadable(self, name: str) -> str:
        """Why a model of the repositories that has no entry could not be read; ``""`` if it could, or there is none."""
        failure = self._failures.get(name)
        return failure.reason if failure is not None and failure.known else ""

    def index(self, on_disk: Collection[str], duplicates: Collection[str]) -> list[ModelStatus]:
        """One row for each known version, and one for each model without a version; sorted by full name.

        A model ``on_disk`` that was never loaded has a row without version and state.
        """
        rows: list[ModelStatus] = []
        for name in sorted({*self.entries, *on_disk, *duplicates}):
            entry = self.entries.get(name)
            if name in duplicates and (entry is None or entry.is_over):
                rows.append(self._row(name, ModelState.UNAVAILABLE.value, DUPLICATE_REASON))
            elif entry is None:
                reason = self._why_unreadable(name)
                rows.append(self._row(name, ModelState.UNAVAILABLE.value if reason else "", reason))
            else:
                rows += entry.rows()
        return rows

    def _row(self, name: str, state: str = "", reason: str = "") -> ModelStatus:
        namespace, plain = self.names.split(name)
        return ModelStatus(plain, "", state, reason, namespace)


def _no_version(entry: ModelEntry) -> NoReturn:
    """Raises NotServingError: no version answers requests that name none."""
    raise NotServingError(
        f"Request for unknown model: '{entry.name}' has no available versions{entry.why_not_available()}",
        ErrorCode.NOT_FOUND,
    )


def _elsewhere(name: str, pools: Pools | None) -> str:
    """The reason if a model is in another pool."""
    if pools is None or pools.has(name):
        return ""
    return f"'{name}' is in pool '{pools.of(name)}', and this is '{pools.own}': put an ensemble and its parts into one pool"


def _not_serving(failure: InferenceError) -> NotServingError:
    return NotServingError(failure.message, failure.code)


def _version_number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InferenceError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be "
            "an integral value > 0",
            ErrorCode.INVALID_ARG,
        )
    number = int(text[: LONGEST_VERSION_DIGITS + 2])  # longer numbers name no version either way
    if number < 0:
        raise InferenceError(
            f"invalid model version specified '{text}' , version should be an integral value > 0", ErrorCode.INVALID_ARG
        )
    return number


class Ensembles:
    """The dependencies between models."""

    def __init__(self, entries: Mapping[str, ModelEntry], config_name: str, names: ModelNames) -> None:
        # called after a model's versions have changed, before anybody is told
        self.watchers: list[Callable[[], None]] = []
        self._entries = entries
        self._names = names
        self._config_name = config_name

    # Parts

    def parts(self, name: str) -> frozenset[str]:
        """The models in a loaded ensemble; empty if there is no such ensemble."""
        return frozenset(
            self._names.part(part, model.namespace) for model in self._versions(name) for part in model.part_names
        )

    def lacking(self, parts: Sequence[str]) -> frozenset[str]:
        """The given models without a serving version."""
        return frozenset(part for part in parts if not self._is_served(part))

    def is_mere_part(self, name: str) -> bool:
        """True if a model was loaded only because ensembles needed it, and none of those remains."""
        entry = self._entries.get(name)
        return entry is not None and entry.as_part and not any(name in self.parts(other) for other in self._entries)

    def _is_served(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and bool(entry.ready_versions())

    def _versions(self, name: str) -> list[EnsembleModel]:
        entry = self._entries.get(name)
        models = () if entry is None else entry.versions.values()
        return [model for model in models if isinstance(model, EnsembleModel) and not model.is_unloaded]

    # Changes

    def on_change(self, name: str) -> None:
        """Update dependent ensembles after a model's versions changed: they may switch versions, stop or restart."""
        changed = deque([name])
        while changed:
            part = changed.popleft()
            for other in self._entries:
                affected = [
                    model
                    for model in self._versions(other)
                    if any(self._names.may_mean(name, part) for name in model.part_names)
                ]
                if [model for model in affected if model.revise()] and other not in changed:
                    changed.append(other)
        for changed_now in self.watchers:
            changed_now()

    # Cycles

    def check(self, ensemble: str, parts: Sequence[str], directories: Mapping[str, Path]) -> None:
        """Check that an ensemble does not contain itself. Blocking: it may read configurations.

        Raises ModelLoadError: INVALID_ARG, the ensemble would contain itself.
        """

        def following(name: str) -> Collection[str]:
            if name == ensemble:
                return parts
            on_disk = part_names_on_disk(directories[name], self._config_name) if name in directories else ()
            stored = self._names.parts(on_disk, self._names.split(name)[0], directories)
            return stored if self.lacking([name]) else self.parts(name)

        circle = circle_of(ensemble, following)
        if circle:
            raise ModelLoadError(
                f"circular dependency between ensembles: {ensemble} -> ... -> {circle[-2]} -> {ensemble}. The steps "
                f"lead round: {' -> '.join(circle)}",
                ErrorCode.INVALID_ARG,
            )
