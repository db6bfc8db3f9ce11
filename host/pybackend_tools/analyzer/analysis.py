"""The search: measures configurations that a sampler proposes, and compares the best one with the present one in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pybackend.errors import InferenceError, ServerError
from pybackend_client.connection import control_path
from pybackend_tools.analyzer.candidates import Candidate, Space, override
from pybackend_tools.analyzer.goal import ENOUGH, Goal, Measured, Say, Turns, alternate, gain, is_better, ranked
from pybackend_tools.analyzer.measurement import Bench, Load, MeasurementError, Rung, rung_of
from pybackend_tools.analyzer.page import write_whole
from pybackend_tools.analyzer.servers import Servers
from pybackend_wire.installation import install_command

Choice = Mapping[str, Candidate]
"""A candidate for each model that is varied; an empty one leaves all of them as they are."""

_MOST_REPEATS = 100
"""Proposals in a row that were measured before: then the sampler has nothing new."""

_FAILED = -1e6
"""The score of a choice that could not be measured."""

_FORMAT = 1


@dataclass(frozen=True)
class TriedChoice(Measured):
    """A choice, and its measurements once it was tried."""

    choice: Choice
    failed: str = ""  # why it could not be measured
    front_ends: int | None = None  # of the server; None if they are not varied

    def document(self) -> dict[str, Any]:
        """For JSON; :func:`outcome_of` reads it."""
        choice = {name: asdict(each) for name, each in self.choice.items()}
        rungs = [rung.document() for rung in self.rungs]
        return {"choice": choice, "rungs": rungs, "failed": self.failed, "front_ends": self.front_ends}


def outcome_of(document: Mapping[str, Any]) -> TriedChoice:
    """An outcome from JSON."""
    choice = {name: Candidate(**each) for name, each in document["choice"].items()}
    return TriedChoice(
        choice, document["failed"], document["front_ends"], rungs=[rung_of(each) for each in document["rungs"]]
    )


@dataclass
class AnalysisResults:
    """All that an analysis has found; the file is complete after each trial."""

    models: list[str]  # that got requests
    settings: Mapping[str, Any]  # an analysis with others is not resumed
    goal: Goal
    present: dict[str, Candidate] = field(default_factory=dict)  # by the models that are varied
    outcomes: list[TriedChoice] = field(default_factory=list)  # the first is that of the present configuration
    compared: Turns = ()  # of the present and the best one

    def ranked(self) -> list[TriedChoice]:
        """The outcomes that keep the limits, the best first."""
        return ranked(self.outcomes, self.goal)

    @property
    def is_better(self) -> bool:
        """Whether the best configuration is reliably better than the present one."""
        best = self.ranked()[:1]
        if not best or not best[0].choice:
            return False
        if not self.goal.best(self.outcomes[0].rungs):
            return True  # the present one misses the limits
        return bool(self.compared) and is_better(self.compared)

    @property
    def gain(self) -> float:
        """How many times better the best configuration is than the present one."""
        return gain(self.compared)

    def write(self, path: Path) -> None:
        """Write the file. Raises ServerError if it cannot be written."""
        document = {
            "format": _FORMAT,
            "models": self.models,
            "settings": self.settings,
            "goal": {name: value for name, value in asdict(self.goal).items() if value != float("inf")},
            "present": {name: asdict(each) for name, each in self.present.items()},
            "outcomes": [each.document() for each in self.outcomes],
            "compared": self.compared,
        }
        write_whole(path, json.dumps(document, indent=1))


def read_results(path: Path) -> AnalysisResults:
    """The results of a file. Raises ServerError if it cannot be read, or is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise ServerError(f"{path} was written by another version of pybackend")
        return AnalysisResults(
            document["models"],
            document["settings"],
            Goal(**document["goal"]),
            {name: Candidate(**each) for name, each in document["present"].items()},
            [outcome_of(each) for each in document["outcomes"]],
            [(old, new) for old, new in document["compared"]],
        )
    except OSError as error:
        raise ServerError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ServerError(f"{path} holds no results of `pybackend analyze`") from None


class Analysis:
    """A search on servers in mode EXPLICIT that have loaded the models. Blocking.

    ``results``: is completed, after each trial. ``configs``: the complete configurations of the models that are varied.
    ``front_ends``: their present number, and those to try; none if they are not varied.
    """

    def __init__(
        self,
        servers: Servers,
        load: Load,
        results: AnalysisResults,
        configs: Mapping[str, Mapping[str, Any]],
        space: Space,
        front_ends: Sequence[int],
        path: Path,
        say: Say,
    ) -> None:
        self._servers = servers
        self._load = load
        self._results = results
        self._configs = configs
        self._spaces = {name: space.of(config) for name, config in configs.items()}
        self._present_front_ends = front_ends[0] if front_ends else None
        self._front_ends: list[int | None] = [*front_ends[1:]] or [None]
        self._path = path
        self._say = say

    def run(self, trials: int) -> None:
        """Measure the present configuration and up to ``trials`` others, and compare the best one with it once more.

        Raises PybackendError if the server has gone, or the present configuration cannot be measured.
        """
        results = self._results
        if not results.outcomes:
            self._say("the present configuration")
            outcome = self._tried(TriedChoice({}, front_ends=self._present_front_ends))
            if outcome.failed:
                raise ServerError(f"the present configuration cannot be measured: {outcome.failed}")
            self._add(outcome)
        began_s, done = time.monotonic(), len(results.outcomes)
        for proposal in self._proposals(trials):
            number = len(results.outcomes)
            tried = number - done
            left_s = (time.monotonic() - began_s) / tried * (trials + 1 - number) if tried else 0
            left = (
                f" (about {left_s / 60:.0f} min left)"
                if left_s >= 60
                else f" (about {left_s:.0f} s left)"
                if left_s
                else ""
            )
            self._say(f"trial {number} of {trials}: {described(proposal)}{left}")
            self._add(self._tried(proposal))
        self._compare()

    def _add(self, outcome: TriedChoice) -> None:
        self._results.outcomes.append(outcome)
        self._results.compared = ()  # with the best one so far
        self._results.write(self._path)
        best = self._results.goal.best(outcome.rungs)
        if outcome.failed:
            self._say(f"  failed: {outcome.failed}")
        elif best is None:
            self._say("  misses the limits")
        else:
            self._say(f"  {best}")

    # Measurements

    def _tried(self, proposal: TriedChoice) -> TriedChoice:
        try:
            return replace(proposal, rungs=list(self._rungs(self._applied(proposal))))
        except (MeasurementError, InferenceError) as error:
            return replace(proposal, failed=error.message if isinstance(error, InferenceError) else str(error))

    def _applied(self, proposal: TriedChoice) -> Bench:
        """Load the models with a choice. Raises InferenceError if one of them cannot be loaded."""
        served, choice = self._servers.at(proposal.front_ends), proposal.choice
        for name, config in self._configs.items():
            parameters = {}
            if name in choice:
                parameters["config"] = json.dumps(override(config, choice[name]))
            served.connection.post_json(f"{control_path(name)}/load", {"parameters": parameters} if parameters else {})
        return served.bench

    def _rungs(self, bench: Bench) -> Iterator[Rung]:
        """Measurements with more and more clients, as long as that brings more and no limit is missed."""
        most = 0.0
        for clients in self._load.clients if not self._load.rate_per_s else self._load.clients[-1:]:
            rung = bench.measure(self._load, clients)
            yield rung
            if rung.p99_ms > self._results.goal.p99_ms or rung.infer_per_s < most * ENOUGH:
                return
            most = max(most, rung.infer_per_s)

    def _compare(self) -> None:
        """Measure the present and the best configuration in turns, each with the clients that suit it best."""
        results = self._results
        goal, found = results.goal, results.ranked()
        present = goal.best(results.outcomes[0].rungs)
        if not found or not found[0].choice or present is None:
            return
        best = goal.best(found[0].rungs)
        assert best is not None
        old = partial(self._value, results.outcomes[0], present.clients)
        new = partial(self._value, found[0], best.clients)
        results.compared = alternate(old, new, self._say)
        results.write(self._path)

    def _value(self, outcome: TriedChoice, clients: int) -> float:
        return self._results.goal.value(self._applied(outcome).measure(self._load, clients))

    # Proposals

    def _proposals(self, trials: int) -> Iterator[TriedChoice]:
        """Choices until so many were measured, or nothing is left; measured ones teach the sampler."""
        results = self._results
        candidates = {name: list(space.choices(results.present[name])) for name, space in self._spaces.items()}
        scores = {_key(each): self._score(each) for each in results.outcomes[1:]}
        scores[_key(replace(results.outcomes[0], choice=results.present))] = self._score(results.outcomes[0])
        if len(self._front_ends) * prod(map(len, candidates.values())) <= trials:
            for front_ends in self._front_ends:
                for combination in product(*candidates.values()):
                    proposal = TriedChoice(dict(zip(candidates, combination, strict=True)), front_ends=front_ends)
                    if _key(proposal) not in scores:
                        yield proposal
            return
        optuna = imported_optuna()
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        repeats = 0
        while len(results.outcomes) <= trials and repeats < _MOST_REPEATS:
            trial = study.ask()
            front_ends = trial.suggest_categorical("front ends", self._front_ends)
            proposal = TriedChoice({name: self._suggested(trial, name) for name in self._spaces}, front_ends=front_ends)
            if _key(proposal) not in scores:
                repeats = 0
                yield proposal
                scores[_key(proposal)] = self._score(results.outcomes[-1])
            repeats += 1
            study.tell(trial, scores[_key(proposal)])

    def _suggested(self, trial: Any, name: str) -> Candidate:
        space, present = self._spaces[name], self._results.present[name]
        instances = trial.suggest_categorical(f"{name} instances", space.instances)
        size, delay_us, preferred = present.max_batch_size, None, None
        if space.delays_us and trial.suggest_categorical(f"{name} batches", [True, False]):
            size = trial.suggest_categorical(f"{name} size", space.batch_sizes)
            delay_us = trial.suggest_categorical(f"{name} delay", space.delays_us)
            if space.preferred:
                preferred = trial.suggest_categorical(f"{name} preferred", [None, *space.preferred])
                preferred = preferred if preferred is None or preferred <= size else None
        threads = trial.suggest_categorical(f"{name} threads", [None, *space.threads]) if space.threads else None
        return Candidate(instances, size, delay_us, preferred, threads)

    def _score(self, outcome: TriedChoice) -> float:
        return self._results.goal.score(outcome.rungs) if outcome.rungs else _FAILED


def imported_optuna() -> Any:
    """The library that proposes configurations. Raises ServerError if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ServerError(
            f"`pybackend analyze` needs optuna and matplotlib: install them with {install_command('analyze')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _key(outcome: TriedChoice) -> str:
    choice = {name: asdict(each) for name, each in sorted(outcome.choice.items())}
    return json.dumps([choice, outcome.front_ends])


def described(outcome: TriedChoice) -> str:
    """A choice as text."""
    choice, flag = outcome.choice, flag_of(outcome)
    many = len(choice) > 1
    said = "; ".join(f"{name}: {each}" if many else str(each) for name, each in choice.items()) or "as it is"
    return f"{said}; {flag}" if flag else said


def flag_of(outcome: TriedChoice) -> str:
    """The flag of ``pybackend serve`` that belongs to a choice; empty if none was varied."""
    return "" if outcome.front_ends is None else f"--front-ends={outcome.front_ends}"
