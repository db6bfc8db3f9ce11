"""``pybackend graph``: draws the ensembles of repositories from their configurations. No model is started."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import print_error, print_text
from pybackend.errors import ModelConfigError, ModelLoadError, ServerError
from pybackend.modelconfig.ensemble import EnsembleStep, circle_of, part_names, steps_of
from pybackend.modelconfig.loader import finish_ensemble, load_config
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.parser import read_config_text
from pybackend.modelconfig.schema import ModelConfig, Scheduling
from pybackend.repository.layout import scan_repositories


def make_parser() -> CommandParser:
    """The parser of ``graph``'s arguments."""
    parser = CommandParser(
        prog="pybackend graph",
        usage="pybackend graph [--format=text|mermaid] [--model=NAME]... REPOSITORY...",
        description="Draws the ensembles of a repository: the order of steps and the flow of tensors.",
    )
    add = parser.add_argument
    add("repositories", type=Path, nargs="+", metavar="REPOSITORY", help="a directory of models")
    add("--format", choices=sorted(_DRAWINGS), default="text", help="output format [text]")
    add("--model", action="append", default=[], metavar="NAME", help="draw only this ensemble; may be repeated")
    return parser


def run_graph(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status: 1 if an ensemble could not be drawn."""
    parser = make_parser()
    given = parser.parsed(arguments)
    scan = scan_repositories(given.repositories)
    shelf = _Shelf(scan.models)
    ensembles = [name for name in scan.models if shelf.is_ensemble(name)]
    _check_names(given, ensembles)
    status = 0
    drawings = []
    for name in given.model or ensembles:
        try:
            drawings.append(_DRAWINGS[given.format](shelf.ensemble(name), shelf.remarks(name)))
        except (ModelConfigError, ModelLoadError) as error:
            print_error(f"error: {error.message}")
            status = 1
    if not drawings and not status:
        drawings = [f"There are no ensembles in {', '.join(map(str, given.repositories))}."]
    print_text("\n\n".join(drawings))
    return status


def _check_names(given: argparse.Namespace, ensembles: Sequence[str]) -> None:
    for name in given.model:
        if name not in ensembles:
            raise ServerError(
                f"unknown ensemble '{name}' in {', '.join(map(str, given.repositories))}: "
                f"it has {', '.join(ensembles) or 'none'}"
            )


class _Shelf:
    """The models on disk. Each is read once."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = directories
        self._read: dict[str, ModelConfig | None] = {}

    def is_ensemble(self, name: str) -> bool:
        """True for an ensemble, including one whose configuration cannot be read."""
        config = self._config(name)
        if config is not None:
            return config.is_ensemble
        try:
            return Scheduling.ENSEMBLE in read_config_text(self._directories[name], CONFIG_FILENAME)
        except ModelConfigError:
            return False

    def ensemble(self, name: str) -> ModelConfig:
        """The configuration of an ensemble, after its graph was validated.

        Raises ModelConfigError if the graph is invalid or circular.
        """
        config = finish_ensemble(load_config(self._directories[name], auto_complete=True))
        circle = circle_of(name, self._parts)
        if circle:
            raise ModelConfigError(f"circular dependency between ensembles: {' -> '.join(circle)} ({config.source})")
        return config

    def remarks(self, name: str) -> dict[str, str]:
        """Notes on an ensemble's parts that its own configuration does not show, by model name."""
        return {part: self._remark(part) for part in self._parts(name)}

    def _remark(self, name: str) -> str:
        if name not in self._directories:
            return "not in the repository"
        config = self._config(name)
        if config is None:
            return "cannot be served"
        return ", ".join(
            filter(None, ("ensemble" if config.is_ensemble else "", "streams" if self._streams(name) else ""))
        )

    def _streams(self, name: str) -> bool:
        """True for a decoupled model, and for an ensemble that contains one."""
        reached = [name]
        for each in reached:
            config = self._config(each)
            if config is not None and config.decoupled:
                return True
            reached += [part for part in self._parts(each) if part not in reached]
        return False

    def _parts(self, name: str) -> tuple[str, ...]:
        config = self._config(name)
        return () if config is None else part_names(config)

    def _config(self, name: str) -> ModelConfig | None:
        if name not in self._read:
            try:
                self._read[name] = load_config(self._directories[name], auto_complete=True)
            except (KeyError, ModelConfigError, ModelLoadError):
                self._read[name] = None
        return self._read[name]


def as_text(config: ModelConfig, remarks: Mapping[str, str]) -> str:
    """One line for each step; steps with the same number may run side by side.

    Args:
        remarks: notes on parts, by model name.
    """
    steps = steps_of(config)
    turns = _turns(steps)
    rows = [("takes", ", ".join(_inputs(config)), "", "")]
    for number in sorted(range(len(steps)), key=turns.__getitem__):
        step = steps[number]
        takes = ", ".join(f"{inner} <- {tensor}" for inner, tensor in step.inputs.items())
        gives = ", ".join(f"{inner} -> {tensor}" for inner, tensor in step.outputs.items())
        rows.append((str(turns[number]), _model(step, remarks), takes, gives))
    rows.append(("gives", ", ".join(tensor.name for tensor in config.outputs), "", ""))
    widths = [max(map(len, column)) for column in zip(*rows[1:-1], strict=True)]
    lines = [f"  {head:5}  {'   '.join(map(str.ljust, cells, widths[1:]))}".rstrip() for head, *cells in rows]
    return "\n".join([config.name, *lines])


def as_mermaid(config: ModelConfig, remarks: Mapping[str, str]) -> str:
    """A flowchart with inputs, steps and outputs as nodes and tensors as edges."""
    lines = (f"    {line}" for line in _mermaid_lines(config, remarks))
    return "\n".join(["---", f"title: {_quoted(config.name)}", "---", "flowchart LR", *lines])


def _mermaid_lines(config: ModelConfig, remarks: Mapping[str, str]) -> Iterator[str]:
    steps = steps_of(config)
    source: dict[str, str] = {}
    for number, (given, text) in enumerate(zip(config.inputs, _inputs(config), strict=True)):
        source[given.name] = f"in{number}"
        yield f"in{number}([{_quoted(text)}])"
    for number, step in enumerate(steps):
        source |= dict.fromkeys(step.outputs.values(), f"step{number}")
        yield f"step{number}[{_quoted(_model(step, remarks))}]"
    made = {tensor: inner for step in steps for inner, tensor in step.outputs.items()}
    for number, step in enumerate(steps):
        for inner, tensor in step.inputs.items():
            label = tensor if tensor in made else inner
            yield f"{source[tensor]} -->|{_quoted(label)}| step{number}"
    for number, output in enumerate(config.outputs):
        yield f"out{number}([{_quoted(output.name)}])"
        yield f"{source[output.name]} -->|{_quoted(made.get(output.name, output.name))}| out{number}"


def _turns(steps: Sequence[EnsembleStep]) -> list[int]:
    """For each step, the length of the longest chain of steps that ends with it."""
    made = {tensor: number for number, step in enumerate(steps) for tensor in step.outputs.values()}
    turns = [0] * len(steps)
    while not all(turns):
        for number, step in enumerate(steps):
            before = [turns[made[tensor]] for tensor in step.inputs.values() if tensor in made]
            if all(before):
                turns[number] = 1 + max(before, default=0)
    return turns


def _inputs(config: ModelConfig) -> list[str]:
    return [f"{tensor.name} (optional)" if tensor.optional else tensor.name for tensor in config.inputs]


def _model(step: EnsembleStep, remarks: Mapping[str, str]) -> str:
    version = f"version {step.model_version}" if step.model_version else ""
    notes = ", ".join(filter(None, (version, remarks.get(step.model_name, ""))))
    return f"{step.model_name} ({notes})" if notes else step.model_name


def _quoted(text: str) -> str:
    """A label without Mermaid syntax."""
    escaped = "".join(each if each.isalnum() or each in " _-.,()" else f"#{ord(each)};" for each in text)
    return f'"{escaped}"'


_DRAWINGS = {"text": as_text, "mermaid": as_mermaid}
