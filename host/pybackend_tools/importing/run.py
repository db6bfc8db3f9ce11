"""The steps of an import between the copied files and the finished entry. They run while a server serves the entry."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pybackend.cli.output import said_if_slow
from pybackend.errors import InferenceError, ServerError
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.normalisation import minimal_document
from pybackend.modelconfig.parser import format_config_text
from pybackend.observability.logging import collected_warnings
from pybackend_client.connection import Connection
from pybackend_client.trial import Answer, Request, Trial, answers_to
from pybackend_tools.importing.entry import SAMPLE_REQUEST, StagedEntry
from pybackend_tools.importing.kinds import SKOPS, FoundModel
from pybackend_tools.importing.measurement import Measures, measure
from pybackend_tools.importing.verification import Comparison, FrameworkModel, compare
from pybackend_wire.model_options import SANDBOX_PREFIX

ENVIRONMENT = "EXECUTION_ENV_PATH"
LABELS = "labels.txt"
_OF_CLASSES = frozenset({"probabilities", "decision", "output__0"})
"""Outputs of the backends of estimators that may have a number for each class."""

_REQUIREMENTS = "requirements.txt"


@dataclass
class ImportRun:
    """An import while it runs."""

    found: FoundModel
    entry: StagedEntry
    base: Mapping[str, Any]  # the configuration that wins over those of the kind: the user's choices
    sample: Request | None  # the user's sample request, None to make one
    verify: bool  # measure, send more than one request, and ask the framework for its answers
    timeout_s: float  # for each request, the load among them
    environments: Mapping[str, str] = field(default_factory=dict)  # the operator's choices, by backend
    config: dict[str, Any] = field(default_factory=dict)  # the complete configuration, once the model is loaded
    measures: Measures | None = None  # None unless ``verify``
    class_names: list[str] = field(default_factory=list)  # that :data:`LABELS` has; empty for none
    warnings: list[str] = field(default_factory=list)  # what the server has logged about the model while it loaded
    _expected: list[dict[str, list[Any]]] = field(default_factory=list)
    _answered: list[tuple[Request, Answer]] = field(default_factory=list)

    def lay_out(self) -> None:
        """Copy and write the files that a server needs to load the model."""
        lay_out(self.entry, self.found)
        if self.entry.place.adds:
            self.entry.copy_beside()
        if self.verify or self._may_have_classes:  # before any of its code runs
            self.entry.share_version(self._framework.files)

    @property
    def _may_have_classes(self) -> bool:
        """Whether a library may know names of classes that an answer does not have."""
        return self.found.kind.name == SKOPS.name and not self.entry.place.adds

    @property
    def _framework(self) -> FrameworkModel:
        return FrameworkModel(self.entry.directory / f"framework_of_{self.entry.place.name}")

    def visit(self, url: str) -> None:
        """Everything that needs the server; runs in a thread.

        Raises PybackendError if the model does not load or answer.
        """
        name = self.entry.place.name
        connection = Connection(url, self.timeout_s)
        trial = Trial(connection, name)
        with said_if_slow("the model is loading, and its framework with it"):
            start_s = self._load(trial)
        self.config = trial.configuration()
        if self._may_have_classes:
            self._keep_class_names(connection)
        if not self.entry.place.adds:
            # Without its name, which is the directory's: so the directory can be renamed.
            self.entry.write(CONFIG_FILENAME, format_config_text(minimal_document(self.config)))
        with said_if_slow("sample requests are answered"):
            requests: list[Request] = []
            if self.sample is None:
                self.sample, sizes = trial.sample(self.config, self.found.examples)
                requests = trial.further(self.config, sizes) if self.verify else []
            answer = self._answer(trial, self.sample)
            self._answered = [(self.sample, answer), *answers_to(trial, requests)]
        self.entry.write(SAMPLE_REQUEST, tensors_text(self.sample))
        self.entry.write(f"sample_answer_{self.entry.place.version}.json", tensors_text(answer))
        self.entry.write(f"test_{_module_name(name)}.py", _TEST.read_text(encoding="utf-8"))
        if self.verify:
            with said_if_slow("the model is measured"):
                self.measures = measure(url, *trial.call(self.sample), start_s)
            trial.unload()  # the framework may need the memory
            with said_if_slow("the framework alone computes the same requests"):
                self._expected = self._framework.answers(
                    connection,
                    self.found.kind.name,
                    self.found.main,
                    self.config,
                    self._rights,
                    [request for request, _ in self._answered],
                )

    @property
    def _rights(self) -> dict[str, Any]:
        return placement_parameters(self.config, self.environments, self.entry.model)

    def _keep_class_names(self, connection: Connection) -> None:
        """Write a label file for the outputs that have a number for each class of an estimator."""
        outputs = [each for each in self.config["output"] if each["name"] in _OF_CLASSES and not each["label_filename"]]
        if not outputs:
            return
        with said_if_slow("the framework is asked for the names of the classes"):
            names = self._framework.class_names(connection, self.found.main, self.config, self._rights)
        fitting = [each for each in outputs if each["dims"][-1:] == [len(names)]]
        if not fitting or names == [str(place) for place in range(len(names))] or any("\n" in each for each in names):
            return
        self.class_names = names
        self.entry.write(LABELS, "".join(f"{name}\n" for name in names))
        for each in fitting:
            each["label_filename"] = LABELS

    def _load(self, trial: Trial) -> float:
        """Load the model with the first of its configurations that it accepts.

        Returns how long that took, in seconds.
        """
        if self.entry.place.adds:
            return self._try(trial)
        reason: InferenceError | None = None
        for configuration in self.found.configurations:
            self.entry.write(CONFIG_FILENAME, format_config_text(_with_base(self.found, configuration, self.base)))
            try:
                return self._try(trial)
            except InferenceError as error:
                reason = reason or error
        assert reason is not None
        raise reason

    def _try(self, trial: Trial) -> float:
        try:
            with collected_warnings() as warnings:
                took_s = trial.load()
            self.warnings = [self._with_given_paths(text) for text in dict.fromkeys(warnings)]
            return took_s
        except InferenceError as error:
            raise InferenceError(self._with_given_paths(error.message)) from None

    def _with_given_paths(self, message: str) -> str:
        """A message that names the user's files instead of their copies, which will be gone."""
        for name, source in self.found.files.items():
            message = message.replace(str(self.entry.version / name), str(source))
        return message.replace(f"{self.entry.version}", str(self.found.source)).replace(
            str(self.entry.directory), str(self.entry.place.repository)
        )

    def _answer(self, trial: Trial, request: Request) -> Answer:
        try:
            return trial.answer(request)
        except InferenceError as error:
            raise ServerError(f"the model refuses the sample request: {error.message}") from None

    def comparison(self, tolerance: float) -> Comparison:
        """Compare the answers with the framework's."""
        return compare(self._answered, self._expected, tolerance)


def is_right(parameter: str) -> bool:
    """Whether a parameter says where, or with which rights, a model runs."""
    return parameter.startswith(SANDBOX_PREFIX) or parameter == ENVIRONMENT


def placement_parameters(config: Mapping[str, Any], environments: Mapping[str, str], directory: Path) -> dict[str, Any]:
    """The parameters that say where, and with which rights, a model runs, for another model that may do the same.

    ``environments``: the operator's choices, by backend. ``directory``: the model's.
    """
    given = config.get("parameters", {})
    rights = {name: value for name, value in given.items() if is_right(name)}
    environment = given.get(ENVIRONMENT, {}).get("string_value") or environments.get(config["backend"])
    if environment:
        path = environment.replace("$$TRITON_MODEL_DIRECTORY", str(directory))
        rights[ENVIRONMENT] = {"string_value": os.path.abspath(path)}
    return rights


def with_parameters(document: Mapping[str, Any], parameters: Mapping[str, str]) -> dict[str, Any]:
    """A configuration with further ``parameters``."""
    added = {name: {"string_value": text} for name, text in parameters.items()}
    return {**document, "parameters": {**document.get("parameters", {}), **added}} if added else dict(document)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two configurations as one; ``over`` wins, and parameters of both count."""
    given = {name: value for name, value in over.items() if value}
    parameters = {**under.get("parameters", {}), **given.get("parameters", {})}
    return {**under, **given, **({"parameters": parameters} if parameters else {})}


def lay_out(entry: StagedEntry, found: FoundModel) -> None:
    """Copy and write the files of a model into its entry, without a configuration."""
    entry.copy(found.files, found.source)
    for name, text in found.texts.items():
        entry.write(f"{entry.version.name}/{name}", text)
    if found.requirements:
        entry.write(_REQUIREMENTS, "".join(f"{line}\n" for line in found.requirements))


def first_configuration(found: FoundModel, base: Mapping[str, Any]) -> dict[str, Any]:
    """The preferred configuration of a model before the model completes it; ``base`` wins."""
    return _with_base(found, found.configurations[0], base)


def _with_base(found: FoundModel, configuration: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    return merged(with_parameters(configuration, found.trust), base)


def _module_name(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name)


def backed_by(found: FoundModel, backend: str) -> FoundModel:
    """The same model for another backend, and for its own if ``backend`` is empty."""
    chosen = backend or found.kind.backend
    return replace(found, configurations=[{**each, "backend": chosen} for each in found.configurations])


_TEST = Path(__file__).resolve().parents[1] / "templates" / "imported" / "test_my_model.py"
"""The test of an entry. It reads the sample and the answers beside it."""


def signature_text(config: Mapping[str, Any]) -> str:
    """The tensors of a model in a line."""
    sides = (
        ", ".join(f"{each['name']} {each['data_type'].removeprefix('TYPE_')} {each['dims']}" for each in config[side])
        for side in ("input", "output")
    )
    return " -> ".join(sides)


def tensors_text(document: Mapping[str, Any]) -> str:
    """A request or an answer of the v2 protocol as JSON, with a line for each tensor."""
    (kind, tensors), *_ = document.items()
    lines = ",\n".join(f"  {json.dumps(tensor, ensure_ascii=False)}" for tensor in tensors)
    return f'{{"{kind}": [\n{lines}\n]}}\n'
