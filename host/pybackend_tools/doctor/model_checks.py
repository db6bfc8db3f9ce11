"""Validates the models of repositories as a load does, as far as that is possible without running their code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

from pybackend.environment.inspection import survey
from pybackend.errors import ModelLoadError, PybackendError
from pybackend.model.host import ModelHost
from pybackend.model.source import ModelSource
from pybackend.model.version_loader import completed_version, config_on_this_machine, is_tended
from pybackend.modelconfig.backends import require_framework
from pybackend.modelconfig.ensemble import part_names, steps_of, validate_connections, with_decoupled
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME, known_backend
from pybackend.modelconfig.labels import read_labels
from pybackend.modelconfig.loader import check_instances, finish_config
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.options import options_of, preload_of, process_group_of, sandbox_options_of
from pybackend.modelconfig.schema import ModelConfig, Scheduling, instances
from pybackend.modelconfig.sequences import sequences_of
from pybackend.modelconfig.validation import validate_cache
from pybackend.modelconfig.warmup import check_samples
from pybackend.observability.logging import collected_warnings
from pybackend.plugins import signature_extras
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.repository.catalogue import Ensembles
from pybackend.repository.host_settings import make_host
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan
from pybackend.repository.names import ModelNames, only
from pybackend.repository.reading import read_model, served_versions
from pybackend.scheduler.sequence_inputs import ImplicitStates
from pybackend.settings import Settings
from pybackend_tools.doctor.model_code import OWN_PYTHON, CodeReport, examine_code

_T = TypeVar("_T")


@dataclass
class ModelReport:
    """The findings about one model, or about the repositories."""

    name: str  # the model's; ``""`` for the repositories
    versions: list[int] = field(default_factory=list)  # those that would be served
    # one sentence each, with the way out; a server could not load the model
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)  # what would make it faster; nothing is wrong

    def to_document(self) -> dict[str, Any]:
        """The report as plain values, for ``--json``."""
        findings = {"errors": self.errors, "warnings": self.warnings, "hints": self.hints}
        return {"model": self.name, "versions": self.versions, **findings}

    def attempt(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T | None:
        """Call a function; a model that it refuses is an error of the report."""
        try:
            return function(*args, **kwargs)
        except PybackendError as error:
            self.add_error(error)
            return None

    def add_error(self, error: PybackendError) -> None:
        text = str(error).strip()
        if text not in self.errors:
            self.errors.append(text)


FileRefusal = Callable[[Path, ModelConfig], str]
"""Why a backend of this server refuses a file or directory of a framework for a model; ``""`` for no known reason."""


async def check_models(
    scan: RepositoryScan, host: ModelHost, settings: Settings, refusal: FileRefusal
) -> list[ModelReport]:
    """Check the layout of repositories and every model in them; one report per model, sorted by name."""
    checker = _Checker(host, settings, ModelNames({}, scan.namespaces), refusal)
    reports = [ModelReport("", warnings=list(scan.warnings))] if scan.warnings else []
    reports += [
        ModelReport(name, errors=[f"{DUPLICATE_REASON}: {', '.join(paths)}"]) for name, paths in scan.duplicates.items()
    ]
    for name, directory in scan.models.items():
        report = ModelReport(name)
        with collected_warnings() as warnings:
            await checker.check(directory, report)
        report.warnings += [text for text in dict.fromkeys(warnings) if text not in report.warnings]
        reports.append(report)
    checker.check_circles(reports, scan.models)
    for report in reports:
        if report.name in checker.ensembles:
            checker.check_ensemble(report, scan)
    return sorted(reports, key=lambda report: report.name)


class _Checker:
    """Checks models one by one, and remembers their configurations for the ensembles among them."""

    def __init__(self, host: ModelHost, settings: Settings, names: ModelNames, refusal: FileRefusal) -> None:
        self._host = host
        self._refusal = refusal
        self._names = names
        self._packs_lists = settings.environments.pack_at_load
        self._configs: dict[str, ModelConfig] = {}
        self._groups: dict[str, str] = {}  # by model
        self._tended: set[str] = set()  # models whose requests the server must see
        self._could_share: dict[str, object] = {}  # by model, what all models in its process would have in common
        self._unsure: set[str] = set()
        self.ensembles: dict[str, ModelConfig] = {}

    async def check(self, directory: Path, report: ModelReport) -> None:
        """Check all that does not depend on other models."""
        try:
            reading = await read_model(directory, self._host, namespace=self._names.split(report.name)[0])
        except ModelLoadError as error:
            report.add_error(error)
            self._check_code_alone(directory, report)
            return
        try:
            versions = await served_versions(reading, self._host)
        except ModelLoadError as error:
            report.add_error(error)
            return
        report.versions, sources = list(versions), list(versions.values())
        if reading.config.is_ensemble:
            config = sources[-1].config
            report.warnings += config.warnings
            report.attempt(read_labels, config, directory)
            self.ensembles[report.name] = self._configs[report.name] = config
            return
        python = self._check_environment(reading, report)
        codes = [self._check_code(source, python, report) for source in sources]
        for source in sources:
            self._check_file(source, report)
        self._check_config(sources[-1], report, completes=any(code.completes_config for code in codes))

    def _check_code_alone(self, directory: Path, report: ModelReport) -> None:
        versions = report.attempt(scan_versions, directory)
        for place in versions.versions.values() if versions is not None else ():
            path = place / DEFAULT_MODEL_FILENAME
            if path.is_file():
                code = examine_code(path, "")
                report.errors += code.errors
                report.warnings += code.warnings

    def _check_environment(self, reading: ModelSource, report: ModelReport) -> str | None:
        """Check the environment; returns the version of its Python, None for the server's own."""
        if reading.environment_path is None:
            return None
        found = report.attempt(survey, reading.environment_path, packs_lists=self._packs_lists)
        if found is None:
            return ""
        if found.modules is not None:
            report.attempt(
                require_framework, reading.config, self._host.backends, reading.environment_path, found.modules
            )
        return found.python

    def _check_file(self, source: ModelSource, report: ModelReport) -> None:
        """Check the file or directory of a framework that one of this server's backends loads."""
        config, row = source.config, known_backend(source.config.backend)
        if source.backend_file is None or not self._host.backends.is_shipped(config.backend, config.runtime):
            return
        names = (config.default_model_filename,) if config.default_model_filename else row.files
        path = next(
            (source.version_directory / name for name in names if (source.version_directory / name).exists()), None
        )
        reason = "" if path is None else self._refusal(path, config)
        if reason and reason not in report.errors:
            report.errors.append(reason)

    def _check_code(self, source: ModelSource, python: str | None, report: ModelReport) -> CodeReport:
        count = len(report.errors)
        report.attempt(source.check_model_file)
        if len(report.errors) > count:
            return CodeReport()
        code = examine_code(source.model_file, OWN_PYTHON if python is None else python)
        report.errors += [text for text in code.errors if text not in report.errors]
        report.warnings += [text for text in code.warnings if text not in report.warnings]
        return code

    def _check_config(self, source: ModelSource, report: ModelReport, *, completes: bool) -> None:
        host, directory = self._host, source.directory
        config, _ = config_on_this_machine(source.config, host)
        report.attempt(sandbox_options_of, config, directory)
        report.attempt(preload_of, config)
        unsure = completes and host.settings.auto_complete
        try:
            finished = finish_config(config, None, len(host.gpus.found), host.gpus.summary)
            instances(finished)
            version = completed_version(finished, directory, signature_extras)
        except ModelLoadError as error:
            if not unsure:
                report.add_error(error)
                return
            self._check_what_stays(config, directory, report)
            if str(error).strip() not in report.errors:
                report.warnings.append(
                    f"the model's auto_complete_config can change the configuration, which is wrong as it is written: {error}"
                )
            self._unsure.add(report.name)
            return
        if unsure:
            self._unsure.add(report.name)
        else:
            report.warnings += finished.warnings
        self._configs[report.name] = finished
        if process_group_of(finished):
            self._groups[report.name] = process_group_of(finished)
        if not unsure and (is_tended(version) or finished.response_cache_enabled):
            self._tended.add(report.name)
        if not (
            report.errors
            or unsure
            or is_tended(version)
            or process_group_of(finished)
            or finished.response_cache_enabled
        ):
            options = preload_of(config), sandbox_options_of(config, directory)
            self._could_share[report.name] = source.environment_path, source.namespace, options

    def _check_what_stays(self, config: ModelConfig, directory: Path, report: ModelReport) -> None:
        """Check the parts of a configuration that no auto_complete_config changes."""
        gpus = self._host.gpus
        report.attempt(check_instances, config, len(gpus.found), gpus.summary)
        report.attempt(options_of, config)
        report.attempt(read_labels, config, directory)
        report.attempt(check_samples, config, directory)
        if config.scheduling is Scheduling.SEQUENCE_BATCHING:
            report.attempt(ImplicitStates, sequences_of(config.document), directory)

    def check_circles(self, reports: Sequence[ModelReport], models: Mapping[str, Path]) -> None:
        """Check that no ensemble contains itself, and forget those that do."""
        ensembles = Ensembles({}, self._host.settings.config_name, self._names)
        for report in reports:
            if report.name in self.ensembles:
                report.attempt(ensembles.check, report.name, self._parts(report.name, models), models)
                if report.errors:
                    del self.ensembles[report.name], self._configs[report.name]

    def check_ensemble(self, report: ModelReport, scan: RepositoryScan) -> None:
        config = self.ensembles[report.name]
        parts = report.attempt(self._steps, report.name, scan.models)
        if parts is None:
            return
        for part in dict.fromkeys(parts):
            if part not in scan.models:
                report.errors.append(
                    f"the ensemble needs model '{part}', which is in no repository: add it, or change model_name ({config.source})"
                )
            elif part not in self._configs and part not in self._unsure:
                report.errors.append(f"the ensemble needs model '{part}', which cannot be loaded")
        used = [self._configs[part] for part in parts if part in self._configs]
        if len(used) != len(parts) or self._unsure.intersection(parts):
            return  # what such a part looks like is known only once it runs
        report.attempt(validate_connections, config, used)
        runs_in = self._runs_in(report.name, scan.models)
        streams = any(each.decoupled for each in runs_in)
        report.attempt(validate_cache, with_decoupled(config) if streams else config, runs_in)
        if not report.errors:
            report.hints += self._hints(config, parts)

    def _hints(self, config: ModelConfig, parts: Sequence[str]) -> list[str]:
        """A hint at the steps that could run in one process."""
        every = list(zip(steps_of(config), parts, strict=True))
        found = {
            name
            for (step, part), (following, its_part) in permutations(every, 2)
            if part != its_part and not set(step.outputs.values()).isdisjoint(following.inputs.values())
            if part in self._could_share and self._could_share[part] == self._could_share.get(its_part)
            for name in (part, its_part)
        }
        *others, last = [f"'{part}'" for part in dict.fromkeys(parts) if part in found] or [""]
        hint = (
            f"models {', '.join(others)} and {last} could share a process: with the same PROCESS_GROUP among their parameters, "
            "these steps run without the server between them. If one of them crashes, all of them do"
        )
        return [*([hint] if others else []), *self._out_of_step(parts)]

    def _out_of_step(self, parts: Sequence[str]) -> Iterator[str]:
        """A hint at each step of a group whose requests leave its process all the same."""
        groups = [self._groups.get(part, "") for part in parts]
        for part in dict.fromkeys(parts):
            group = self._groups.get(part)
            if group and groups.count(group) > 1 and part in self._tended:
                yield (
                    f"model '{part}' is in PROCESS_GROUP '{group}' with other steps, but its requests go through the server, which forms their "
                    "batches, or otherwise has a part in them: steps run in one process without dynamic_batching, sequence_batching, a response "
                    "cache, VALIDATE_OUTPUTS, EXECUTION_TIME_LIMIT_S, reshape and decoupled responses"
                )

    def _steps(self, name: str, models: Mapping[str, Path]) -> list[str]:
        """The full names of the models that run an ensemble's steps.

        Raises AmbiguousModelError if a step's model is in several namespaces.
        """
        home, _ = self._names.split(name)
        named = [step.model_name for step in steps_of(self.ensembles[name])]
        return [only(each, self._names.to_load(each, home, models)) for each in named]

    def _parts(self, name: str, models: Mapping[str, Path]) -> tuple[str, ...]:
        return self._names.parts(part_names(self.ensembles[name]), self._names.split(name)[0], models)

    def _runs_in(self, name: str, models: Mapping[str, Path]) -> list[ModelConfig]:
        """The configurations of the models in whose processes a model runs. Its ensembles contain no circle."""
        if name not in self.ensembles:
            return [self._configs[name]] if name in self._configs else []
        return [each for part in self._parts(name, models) for each in self._runs_in(part, models)]


@contextmanager
def model_host(settings: Settings) -> Iterator[ModelHost]:
    """The host for the length of a ``with`` block. It has started no process.

    Raises PybackendError if the code of model processes cannot be staged.
    """
    launcher = StubLauncher(stage_bundle())
    host = make_host(settings, launcher, signature_extras)
    try:
        yield host
    finally:
        launcher.close()
        if host.sandbox is not None:
            host.sandbox.close()
