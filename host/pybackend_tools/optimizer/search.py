"""The search: makes each form of a model, compares its answers with the original's, and measures it, one after the other."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pybackend.errors import InferenceError, PybackendError, ServerError
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.parser import format_config_text
from pybackend_client.connection import Connection, LargeAnswerError
from pybackend_client.figures import Source
from pybackend_client.inference import Request as BinaryRequest
from pybackend_client.inference import infer
from pybackend_client.trial import Answer, Request, Trial, cause_of
from pybackend_tools.analyzer.goal import Say, alternate
from pybackend_tools.analyzer.measurement import Bench, Load, MeasurementError, Target
from pybackend_tools.analyzer.requests import documents_for, from_file, target_with
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.entry import EntryPath, StagedEntry
from pybackend_tools.importing.kinds import FoundModel
from pybackend_tools.importing.measurement import model_pids
from pybackend_tools.importing.run import (
    backed_by,
    first_configuration,
    is_right,
    lay_out,
    merged,
    placement_parameters,
    signature_text,
)
from pybackend_tools.importing.verification import FrameworkModel, UnequalError, inner_file, probe_files
from pybackend_tools.optimizer.accuracy import Metric, MetricError, Original, difference_of
from pybackend_tools.optimizer.forms import Form
from pybackend_tools.optimizer.results import SearchResults, TriedForm

_PROGRAM = Path(__file__).with_name("conversion_program.py")
_SOURCE, _MADE = "files", "made"
_CONVERSION = {
    "backend": "python",
    "input": [{"name": "begin", "data_type": "TYPE_BOOL", "dims": [1]}],
    "output": [{"name": name, "data_type": "TYPE_STRING", "dims": [-1]} for name in ("names", "files")],
    "instance_group": [{"count": 1}],
}
_OWN_NAMES = re.compile(
    r"^failed to load '[^']*', failed to poll from model repository: |^model '[^']*': | of model '[^']*'(?= needs )| \([^ ()]*/config\.pbtxt\)$"
)
_PATIENCE_S, _AGAIN_S = 60.0, 0.5


class FormError(ServerError):
    """A form cannot be made: the message says why."""


@dataclass(frozen=True)
class Wishes:
    """The user's choices for all forms."""

    base: Mapping[str, Any]  # fields of the configuration, which win
    data: Path | None  # requests to compare and to measure with; None for random ones
    calibration: Path | None  # requests by which numbers are scaled for int8; None for no forms with it
    metric: Metric | None
    limit_s: float  # for each form
    load: Load
    environments: Mapping[str, str]  # the operator's choices, by backend


@dataclass
class Search:
    """A search on a server in mode EXPLICIT, whose repository is the directory of the staged entry. Blocking.

    ``results``: is completed, after each form. ``entry``: gets the files of the form that is chosen.
    """

    found: FoundModel
    forms: Sequence[Form]
    entry: StagedEntry
    wishes: Wishes
    results: SearchResults
    output: Path
    say: Say
    _original: dict[str, Any] = field(default_factory=dict)  # the complete configuration of the usual form
    _requests: list[Request] = field(default_factory=list)
    _expected: Original = ()
    _samples: list[Request] = field(default_factory=list)  # for conversions
    _made: dict[tuple[str, ...], FoundModel | str] = field(
        default_factory=dict
    )  # by the steps: files, or why there are none

    def run(self, url: str, metrics_url: str) -> None:
        """Try all forms, and compare the best one with the original once more.

        Raises PybackendError if the server has gone, or the original cannot be measured in its usual form.
        """
        patience_s = self.wishes.limit_s + _PATIENCE_S
        self._connection = Connection(url, patience_s)
        self._source = Source(self._connection, Connection(metrics_url, patience_s))
        for number, form in enumerate(self.forms, 1):
            self.say(f"{number} of {len(self.forms)}: {form.title}")
            outcome = self._tried(form)
            self.results.outcomes.append(outcome)
            if number == 1 and outcome.failed:
                raise ServerError(f"{self.found.source} cannot be measured as it is: {outcome.failed}")
            self.results.write(self.output)
            reason = self.results.reason(outcome)
            self.say("  " + "; ".join(filter(None, [*map(str, outcome.rungs), reason])))
        self._compare()

    def files_of(self, form: Form) -> FoundModel:
        """The files of a form, which are made if it needs that. Raises FormError if that is impossible."""
        return backed_by(self._made_by(tuple(form.steps)), form.backend)

    def configuration_of(self, form: Form) -> dict[str, Any]:
        """The configuration to start a form with: the tensors of the original, the settings of the form, the user's choices."""
        fields = {name: self._original[name] for name in _KEPT if self._original.get(name) and not form.has_own_tensors}
        base = dict(self.wishes.base)
        if form.backend != self.forms[0].backend:  # it does not know the parameters of the other one
            base["parameters"] = {name: each for name, each in base.get("parameters", {}).items() if is_right(name)}
        return merged(merged(fields, form.settings), base)

    def sample_for(self, form: Form) -> Request | None:
        """A request for a form; None if the one for the original has other tensors."""
        return None if form.has_own_tensors else self._requests[0]

    def forget_interrupted(self) -> None:
        """Leave out a form that has failed because the server ended."""
        if self.results.outcomes and self.results.outcomes[-1].failed:
            self.results.outcomes.pop()

    # One form

    def _tried(self, form: Form) -> TriedForm:
        with self._limit() as is_over:
            try:
                return self._measured(form)
            except (InferenceError, MeasurementError, FormError, LargeAnswerError, UnequalError, MetricError) as error:
                if is_over.is_set():
                    return TriedForm(form, failed=f"it took longer than {self.wishes.limit_s:g} s (--timeout)")
                return TriedForm(form, failed=self._reason(error))

    def _reason(self, error: PybackendError) -> str:
        """An error in a line, without the names of models that exist for the search only."""
        said = cause_of(error.message if isinstance(error, InferenceError) else str(error))
        return _OWN_NAMES.sub("", said.replace(f"{self.entry.directory}/", ""))

    def _measured(self, form: Form) -> TriedForm:
        found = self.files_of(form)
        name = self._name(form.name)
        with self._model(name, found, self.configuration_of(form)) as directory:
            if not self._original:
                framework = self._framework(directory)
            trial = Trial(self._connection, name)
            start_s = trial.load()
            config = trial.configuration()
            if not self._original:
                self._begin(trial, config, framework)
            requests = [_as_asked(request, config) for request in self._requests]
            answers: list[Answer] = [trial.answer(request) for request in requests]
            metric = self.wishes.metric
            outcome = TriedForm(
                form,
                difference=difference_of(answers, self._expected),
                metric=None if metric is None else metric(requests, answers),
                start_s=start_s,
                file_bytes=sum(path.stat().st_size for path in (directory / "1").rglob("*") if path.is_file()),
                tensors=signature_text(config),
            )
            with self._bench(name, trial, requests) as bench:
                return replace(outcome, rungs=[bench.measure(self.wishes.load, self.wishes.load.clients[0])])

    def _begin(self, trial: Trial, config: dict[str, Any], framework: FrameworkModel) -> None:
        """Find the requests, and the answers of the framework alone, once the usual form is loaded."""
        self._requests = documents_for(trial, config, self.wishes.data)
        calibration = self.wishes.calibration
        self._samples = self._requests[:1] if calibration is None else from_file(calibration, config)
        kind = self.found.kind.name
        rights = placement_parameters(config, self.wishes.environments, self.entry.directory / config["name"])
        self._expected = framework.answers(self._connection, kind, self.found.main, config, rights, self._requests)
        Trial(self._connection, framework.directory.name).unload()
        self.results.requests = len(self._requests)
        self._original = config

    def _framework(self, directory: Path) -> FrameworkModel:
        framework = FrameworkModel(directory.with_name(f"framework_of_{directory.name}"))
        shutil.copytree(directory / "1", framework.files)
        return framework

    def _name(self, what: str) -> str:
        """The name of a model or a directory beside the one that the entry will have."""
        return f"{self.entry.place.name}-{what}"

    @contextmanager
    def _model(self, name: str, found: FoundModel, base: Mapping[str, Any]) -> Iterator[Path]:
        """A model of the repository; it and its processes go in the end."""
        with StagedEntry(EntryPath(self.entry.directory, name, 1, adds=False, replaces=False)) as entry:
            lay_out(entry, found)
            entry.write(CONFIG_FILENAME, format_config_text(first_configuration(found, base)))
            entry.commit()
        try:
            yield entry.place.model
        finally:
            with suppress(ServerError, InferenceError):
                Trial(self._connection, name).unload()
            shutil.rmtree(entry.place.model, ignore_errors=True)

    def _bench(self, name: str, trial: Trial, requests: Sequence[Request]) -> Bench:
        target: Target = target_with(trial, name, requests)
        return Bench(self._connection.url, self._source, [target], [name])

    @contextmanager
    def _limit(self) -> Iterator[threading.Event]:
        """Kill the processes of all models from the end of the limit on; the event says that it was reached."""
        is_over, is_done = threading.Event(), threading.Event()

        def watch() -> None:
            wait_s = self.wishes.limit_s
            while not is_done.wait(wait_s):
                is_over.set()
                for pid in model_pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                wait_s = _AGAIN_S  # a model may have begun again

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield is_over
        finally:
            is_done.set()
            watcher.join()

    # Conversions

    def _made_by(self, steps: tuple[str, ...]) -> FoundModel:
        """The files after some steps. Raises FormError if one of them fails, now or earlier."""
        if not steps:
            return self.found
        if steps not in self._made:
            try:
                self._made[steps] = self._converted(self._made_by(steps[:-1]), steps)
            except (InferenceError, FormError) as error:
                self._made[steps] = self._reason(error)
        made = self._made[steps]
        if isinstance(made, str):
            raise FormError(made)
        return made

    def _converted(self, source: FoundModel, steps: tuple[str, ...]) -> FoundModel:
        """The files that a step makes."""
        name = self._name(f"to-{'-'.join(steps)}")
        rights = placement_parameters(
            self._original, self.wishes.environments, self.entry.directory / self._original["name"]
        )
        with StagedEntry(EntryPath(self.entry.directory, name, 1, adds=False, replaces=False)) as entry:
            entry.copy({f"{_SOURCE}/{inner}": path for inner, path in source.files.items()}, source.source)
            question = {
                "step": steps[-1],
                "kind": source.kind.name,
                "path": f"{_SOURCE}/{inner_file(entry.version / _SOURCE, source.main)}",
                "config": self._original,
                "samples": self._samples,
            }
            for file, text in probe_files(_PROGRAM, question).items():
                entry.write(f"1/{file}", text)
            entry.write(CONFIG_FILENAME, format_config_text({**_CONVERSION, "parameters": rights}))
            entry.commit()
        trial = Trial(self._connection, name)
        try:
            trial.load()
            answer = infer(self._connection, BinaryRequest(name, inputs={"begin": "[true]"}))
        finally:
            with suppress(ServerError, InferenceError):
                trial.unload()
            shutil.rmtree(entry.place.model, ignore_errors=True)
        directory = self.entry.directory / self._name(_MADE) / name
        directory.mkdir(parents=True)
        return written(directory, *(output.values.ravel().tolist() for output in answer.outputs))

    # The end

    def _compare(self) -> None:
        """Measure the original and the best form in turns."""
        original, outcomes = self.results.original, self.results.outcomes
        if self.results.reason(original):
            return
        while (best := self.results.ranked()[0]) is not original and not self.results.compared:
            try:
                with self._loaded(original.form) as old, self._loaded(best.form) as new:
                    self.results.compared = alternate(lambda: self._value(old), lambda: self._value(new), self.say)
            except (InferenceError, MeasurementError) as error:
                reason = f"it failed when it was compared with the original: {self._reason(error)}"
                outcomes[outcomes.index(best)] = TriedForm(best.form, failed=reason)
                self.say(f"  {best.form.title}: {reason}")
            self.results.write(self.output)

    @contextmanager
    def _loaded(self, form: Form) -> Iterator[Bench]:
        name = self._name(form.name)
        with self._model(name, self.files_of(form), self.configuration_of(form)):
            trial = Trial(self._connection, name)
            trial.load()
            config = trial.configuration()
            with self._bench(name, trial, [_as_asked(each, config) for each in self._requests]) as bench:
                yield bench

    def _value(self, bench: Bench) -> float:
        return self.results.goal.value(bench.measure(self.wishes.load, self.wishes.load.clients[0]))


def written(directory: Path, names: Sequence[bytes], contents: Sequence[bytes]) -> FoundModel:
    """Write the files of a conversion into an empty directory.

    Raises FormError if they are no model: strangers' code has made them.
    """
    try:
        for name, data in zip(names, contents, strict=True):
            (directory / os.path.basename(name.decode())).write_bytes(data)
        return detect(max(directory.iterdir(), key=lambda path: path.suffix != ".bin"))  # weights lie beside the model
    except (OSError, ValueError, ServerError) as error:
        raise FormError(f"its conversion has made no model: {error}") from None


_KEPT = ("input", "output", "max_batch_size", "dynamic_batching")
"""The fields of a configuration that clients see."""


def _as_asked(request: Request, config: Mapping[str, Any]) -> Request:
    """The request for a form whose inputs have other names and types; they stand in the same order."""
    inputs = config["input"]
    if {each["name"] for each in request["inputs"]} <= {each["name"] for each in inputs}:
        return request
    if len(inputs) != len(request["inputs"]):
        listed = ", ".join(each["name"] for each in inputs)
        raise UnequalError(f"its inputs, {listed}, are not the original's")
    return {
        "inputs": [
            {**given, "name": each["name"], "datatype": each["data_type"].removeprefix("TYPE_")}
            for given, each in zip(request["inputs"], inputs, strict=True)
        ]
    }
