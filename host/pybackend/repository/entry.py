"""One name in the repository: its known versions and their states."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pybackend.errors import ErrorCode, InferenceError
from pybackend.model.host import NotLoaded
from pybackend.model.model import UNLOADED, Model, ModelState
from pybackend.model.source import ModelSource
from pybackend.model.traffic import Traffic
from pybackend.modelconfig.schema import full_name
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport, TrafficRules, traffic_problem

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelStatus:
    """One row of the table of models, and of the repository index."""

    name: str
    version: str  # decimal; if it has none, ``-`` in the table and ``""`` in the index
    state: str  # the stage of its life; ``""`` for a model that was never loaded, or waits for its first load
    reason: str = ""  # why it is not available, or not as it is on disk; ``""`` if it is
    namespace: str = ""  # the model's; ``""`` on a server without namespaces

    @property
    def full_name(self) -> str:
        return full_name(self.namespace, self.name)

    @property
    def status(self) -> str:
        """State and reason in one text."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    @property
    def is_ready(self) -> bool:
        """True if the version accepts requests."""
        return self.state == ModelState.READY.value


@dataclass
class ModelEntry:
    """A name in the repository."""

    name: str
    # by number, including those that failed to load or were unloaded
    versions: Mapping[int, Model] = field(default_factory=dict)
    # by number, what each version was loaded from
    sources: Mapping[int, ModelSource] = field(default_factory=dict)
    # its last load failed: there are no versions, or those of before; None if it has not failed, or its versions say
    # why
    not_loaded: NotLoaded | None = None
    newest_first: tuple[Model, ...] = ()  # the same versions, highest number first
    as_part: bool = False  # True if it was loaded only as a part of ensembles
    # distributes the requests that name no version; None if the newest version answers them
    traffic: Traffic | None = None
    configured_rules: TrafficRules | None = None  # the rules of the model's configuration
    # the rules that were set while the server runs; they replace the configured ones
    chosen_rules: TrafficRules | None = None
    namespace: str = ""  # of the model; ``""`` on a server without namespaces

    @property
    def full_name(self) -> str:
        return full_name(self.namespace, self.name)

    def set_versions(self, models: Mapping[int, Model], sources: Mapping[int, ModelSource]) -> None:
        for model in self.newest_first:
            model.be_newest(newest=False)
        self.versions = dict(sorted(models.items()))
        self.sources = sources
        self.not_loaded = None
        self.newest_first = tuple(reversed(self.versions.values()))
        self._direct()

    def configure_rules(self, rules: TrafficRules | None) -> None:
        """Use the rules of a configuration; other ones end those that were chosen while the server runs."""
        if rules != self.configured_rules:
            self.configured_rules, self.chosen_rules = rules, None
        if self.chosen_rules is not None and self.versions:
            config = next(iter(self.versions.values())).config
            problem = traffic_problem(self.chosen_rules, config, self.versions)
            if problem:
                log.warning(
                    "model '%s': the rules of its configuration are in effect again: %s", self.full_name, problem
                )
                self.chosen_rules = None
        self._direct()

    def choose_rules(self, rules: TrafficRules | None) -> None:
        """Use these rules instead of the configured ones; None for the configured ones."""
        self.chosen_rules = rules
        self._direct()

    def _direct(self) -> None:
        """Let the rules in effect distribute requests over the present versions."""
        rules = self.chosen_rules or self.configured_rules
        if rules is None:
            self.traffic = None
        elif self.traffic is None or self.traffic.rules != rules:
            self.traffic = Traffic(self.full_name, rules)
        if self.traffic is not None:
            self.traffic.serve(self.versions)
        for model in self.versions.values():
            model.is_shadow = self.traffic is not None and self.traffic.is_shadow(model)
            model.be_newest(newest=self.traffic is None and model is self.newest_first[0])

    def ready_versions(self) -> list[Model]:
        """Versions that accept requests, ascending."""
        return [model for model in self.versions.values() if model.state is ModelState.READY]

    @property
    def is_ready(self) -> bool:
        """True if every version serves, or was deliberately unloaded; a shadow does not count."""
        return bool(self.versions) and all(
            model.health.is_ready or model.is_off or model.is_shadow for model in self.versions.values()
        )

    @property
    def is_loaded(self) -> bool:
        """True if there are versions and all of them accept requests."""
        return bool(self.versions) and len(self.ready_versions()) == len(self.versions)

    @property
    def is_broken(self) -> bool:
        """True if a version does not serve although nobody has unloaded it, or what is on disk failed to load."""
        return (
            not self.versions
            or self.not_loaded is not None
            or any(model.state is ModelState.UNAVAILABLE and not model.is_off for model in self.versions.values())
        )

    @property
    def has_failed_change(self) -> bool:
        """True if it has versions, and what is on disk failed to load."""
        return bool(self.versions) and self.not_loaded is not None

    def absence(self) -> NotLoaded:
        """The reason why no version serves."""
        models = self.versions.values()
        if self.not_loaded is not None and not (models and self.not_loaded.known):
            return self.not_loaded
        unloaded = bool(models) and all(model.is_off or model.state is ModelState.UNLOADING for model in models)
        return NotLoaded("".join(model.load_failure for model in models).strip(), on_purpose=unloaded)

    @property
    def is_over(self) -> bool:
        """True if no version serves, or will without another load."""
        return all(model.state is ModelState.UNAVAILABLE for model in self.versions.values())

    @property
    def is_unloaded(self) -> bool:
        """True if all its versions were unloaded, or are being unloaded."""
        return bool(self.versions) and all(
            model.state is ModelState.UNLOADING or model.reason == UNLOADED for model in self.versions.values()
        )

    def why_not_available(self) -> str:
        """The reason why no version of a model serves, for clients, to be appended to a sentence."""
        if loading := next((model.loading for model in self.newest_first if model.loading), ""):
            return f": {loading}"
        if not self.versions and self.not_loaded is None:
            return ": it waits for its first load"
        reasons = [model.reason for model in self.newest_first] if self.not_loaded is None else [self.not_loaded.reason]
        first = next((reason for reason in reasons if reason and reason != UNLOADED), "")
        return f". It failed: {first.splitlines()[0]} (the server's log has the rest)" if first else ""

    def forget_failures(self) -> None:
        """Remove versions that could not be loaded."""
        known = {
            version: model
            for version, model in self.versions.items()
            if model.state is not ModelState.UNAVAILABLE or model.reason == UNLOADED
        }
        self.set_versions(known, self.sources)

    def rows(self, no_version: str = "") -> list[ModelStatus]:
        """The state of each version; one row with ``no_version`` if there is none."""
        if not self.versions:
            if self.not_loaded is None:  # it waits for its first load
                return [ModelStatus(self.name, no_version, "", namespace=self.namespace)]
            state, reason = ModelState.UNAVAILABLE.value, self.not_loaded.reason
            return [ModelStatus(self.name, no_version, state, reason, self.namespace)]
        return [
            ModelStatus(self.name, str(version), *self._state_of(model), self.namespace)
            for version, model in self.versions.items()
        ]

    def _state_of(self, model: Model) -> tuple[str, str]:
        """The state of a version as clients see it, and the reason.

        A model that says itself that it is not ready is not.
        """
        if model.state is not ModelState.READY:
            return model.state.value, model.reason
        if objection := model.health.own_objection:
            return ModelState.UNAVAILABLE.value, objection
        return model.state.value, "" if self.not_loaded is None else _as_before(self.not_loaded)


def _as_before(failed: NotLoaded) -> str:
    """The reason that a serving version has while its last change has failed."""
    then, now = time.localtime(failed.since_s), time.localtime()
    moment = time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)
    return f"serves as before; the change at {moment} failed: {failed.reason}"


_NO_RULES = TrafficRules({})


def report_traffic(entry: ModelEntry) -> TrafficReport:
    """The rules of a model."""
    if entry.traffic is None:
        newest = next((model.version for model in reversed(entry.ready_versions())), None)
        return TrafficReport(entry.name, _NO_RULES, "default", {} if newest is None else {newest: 100.0})
    source = "configuration" if entry.chosen_rules is None else "request"
    return TrafficReport(entry.name, entry.traffic.rules, source, entry.traffic.shares)


def change_traffic(entry: ModelEntry, change: TrafficChange) -> TrafficReport:
    """Change the rules of a model."""
    if change.reset:
        entry.choose_rules(None)
    else:
        present = entry.chosen_rules or entry.configured_rules or _NO_RULES
        rules = TrafficRules(
            present.weights if change.weights is None else change.weights,
            change.shadow if change.sets_shadow else present.shadow,
        )
        ready = entry.ready_versions()
        unknown = sorted({*rules.weights, *([rules.shadow.version] if rules.shadow else [])}.difference(entry.versions))
        problem = f"version {unknown[0]} is not loaded" if unknown else ""
        if not problem and ready:
            problem = traffic_problem(rules, ready[0].config, [int(model.version) for model in ready])
        if problem:
            raise InferenceError(
                f"cannot change the traffic of model '{entry.full_name}': {problem}", ErrorCode.INVALID_ARG
            )
        entry.choose_rules(rules)
    report = report_traffic(entry)
    log.info("%s", _sentence(entry.full_name, report))
    return report


def _sentence(name: str, report: TrafficReport) -> str:
    shares = ", ".join(f"version {version} {percent:.3g} %" for version, percent in report.shares.items())
    shadow = report.rules.shadow
    copies = "" if shadow is None else f"; version {shadow.version} gets copies of {shadow.percent:g} %"
    return f"model '{name}': requests that name no version go to: {shares or 'no version'}{copies}"
