"""``pybackend graph``: the ensembles of repositories, drawn from their configurations. No model is started."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pybackend.cli.options import CommandParser
from pybackend.errors import ModelConfigError, ModelLoadError, ServerError
from pybackend.modelconfig.ensemble import part_names
from pybackend.modelconfig.ensemble_drawing import as_mermaid, as_text
from pybackend.modelconfig.loader import finish_ensemble, load_config
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.schema import ModelConfig, Scheduling
from pybackend.repository.layout import scan_repositories

_DRAWINGS = {"text": as_text, "mermaid": as_mermaid}


def make_parser() -> CommandParser:
    """The part of the command line behind ``graph``."""
    parser = CommandParser(
        prog="pybackend graph",
        usage="pybackend graph [--format=text|mermaid] [--model=NAME]... REPOSITORY...",
        description="Draws the ensembles of a repository: which steps run when, and which tensors go where.",
    )
    parser.add_argument("repositories", type=Path, nargs="+", metavar="REPOSITORY", help="a directory of models")
    parser.add_argument("--format", choices=sorted(_DRAWINGS), default="text", help="how [text]")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="only this ensemble; may be given several times"
    )
    return parser


def graph(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status: 1 if something could not be drawn.

    Raises:
        ServerError: the arguments are wrong, or a repository cannot be read.
    """
    parser = make_parser()
    given, rest = parser.parse_known_args(list(arguments))
    if rest:
        parser.refuse(rest[0])
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
            sys.stderr.write(f"error: {error.message}\n")
            status = 1
    if not drawings and not status:
        drawings = [f"There are no ensembles in {', '.join(map(str, given.repositories))}."]
    sys.stdout.write("\n".join(f"{drawing}\n" for drawing in drawings))
    return status


def _check_names(given: argparse.Namespace, ensembles: Sequence[str]) -> None:
    for name in given.model:
        if name not in ensembles:
            raise ServerError(
                f"there is no ensemble '{name}' in {', '.join(map(str, given.repositories))}: "
                f"there are {', '.join(ensembles) or 'none'}"
            )


class _Shelf:
    """The models on disk, each read once.

    Args:
        directories: by name.
    """

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = directories
        self._read: dict[str, ModelConfig | None] = {}

    def is_ensemble(self, name: str) -> bool:
        """True if a model is one, or seems to be but cannot be read."""
        config = self._config(name)
        if config is not None:
            return config.is_ensemble
        try:
            return str(Scheduling.ENSEMBLE).encode() in (self._directories[name] / CONFIG_FILENAME).read_bytes()
        except OSError:
            return False

    def ensemble(self, name: str) -> ModelConfig:
        """An ensemble whose graph holds together.

        Raises:
            ModelConfigError: it does not.
        """
        config = finish_ensemble(load_config(self._directories[name], auto_complete=True))
        circle = self._circle(name)
        if circle:
            raise ModelConfigError(f"circular dependency between ensembles: {' -> '.join(circle)} ({config.source})")
        return config

    def remarks(self, name: str) -> dict[str, str]:
        """What is to be said of the parts of an ensemble that is no part of itself."""
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
        """True if a model answers with a stream: it says so, or it is an ensemble with such a part."""
        reached = [name]
        for each in reached:
            config = self._config(each)
            if config is not None and config.decoupled:
                return True
            reached += [part for part in self._parts(each) if part not in reached]
        return False

    def _circle(self, name: str) -> list[str]:
        """The way from an ensemble back to itself, if there is one."""
        paths, seen = [[name]], set[str]()
        while paths:
            path = paths.pop()
            for part in self._parts(path[-1]):
                if part == name:
                    return [*path, part]
                if part not in seen:
                    seen.add(part)
                    paths.append([*path, part])
        return []

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
