"""Reads and changes the traffic rules of a model while the server runs."""

from __future__ import annotations

import logging

from pybackend.errors import ErrorCode, InferenceError
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport, TrafficRules, traffic_problem
from pybackend.repository.entry import ModelEntry

log = logging.getLogger(__name__)

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
