"""The settings of ``pybackend serve`` from the command line, variables and a file, and where each came from."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.cli.command_parser import FlagError
from pybackend.cli.config_file import read_config_file, texts_of
from pybackend.cli.flag import Flag
from pybackend.errors import ServerError, SettingError
from pybackend.spelling import closest
from pybackend_wire.confinement import LIBRARY_PATH

PREFIX = "PYBACKEND_"
_OTHERS = frozenset({LIBRARY_PATH, "PYBACKEND_URL", "PYBACKEND_API_KEY"})
"""Variables with another use: for the processes of models, and for commands that talk to a server."""

COMMAND_LINE, DEFAULT = "command line", "default"

_CONFIG_FILE, _REPOSITORY = "--config-file", "--model-repository"
_OF_KUBERNETES = re.compile(r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)")
"""Kubernetes gives pods such variables for a service named ``pybackend``."""


@dataclass(frozen=True, slots=True)
class Given:
    """One setting in effect.

    Attributes:
        texts: its values as on the command line, None for the default.
        source: :data:`COMMAND_LINE`, a variable's name, a file's path, or :data:`DEFAULT`.
    """

    flag: Flag
    texts: Sequence[str] | None
    source: str


class SettingSources:
    """Completes a command line with the settings from variables and the configuration file.

    The strongest source of a setting is the command line, then the variable, then the file, then the default. The
    values of a flag that may be repeated come from one source: the strongest that has any.

    Attributes:
        warnings: a sentence for each unknown variable.
        settings: the settings in effect, in the order of the flags; :meth:`complete` fills it.
    """

    def __init__(self, serve: argparse.ArgumentParser, flags: Sequence[Flag], environ: Mapping[str, str]) -> None:
        self.warnings: tuple[str, ...] = ()
        self.settings: list[Given] = []
        self._serve = serve
        self._environ = environ
        self._all = flags
        self._flags = [flag for flag in flags if flag.name.startswith("--") and not flag.action]
        self._named = {name: flag for flag in self._flags for name in flag.names}

    def complete(self, given: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
        """All settings, with the defaults of those that no source has.

        Raises ServerError if a variable or the file has a wrong value, or the file an unknown key.
        """
        found = vars(given)
        if found["repository"] is None:
            del found["repository"]
        sources = [self._variables()]
        named = sources[0].get(_CONFIG_FILE)
        file = found.get("config_file") or (None if named is None else Path(*named[1]))
        if file is not None:
            sources.append(self._file(file))
        for flag in self._flags:
            chosen = None
            if flag.key not in found and not (flag.name == _REPOSITORY and "repository" in found):
                chosen = next((source[flag.name] for source in sources if flag.name in source), None)
            if chosen is not None:
                found[flag.key] = self._value(flag, *chosen)
            self.settings.append(self._given(flag, chosen, found, words))
        for flag in self._all:
            default = flag.usual
            found.setdefault(flag.key, flag.read(default) if isinstance(default, str) and flag.read else default)
        return given

    def _texts_in(self, words: Sequence[str], flag: Flag) -> list[str]:
        """The values of a flag on the command line, where it may be shortened."""
        texts = []
        for place, word in enumerate(words):
            name, equals, text = word.partition("=")
            if not name.startswith("--") or not any(each.startswith(name) for each in flag.names):
                continue
            if name in self._named and name not in flag.names:
                continue
            following = words[place + 1] if place + 1 < len(words) else "-"
            if equals:
                texts.append(text)
            elif flag.bare is not None and following.startswith("-"):
                texts.append("true")
            else:
                texts.append(following)
        return texts

    def _given(
        self, flag: Flag, chosen: tuple[str, list[str]] | None, found: Mapping[str, Any], words: Sequence[str]
    ) -> Given:
        """The setting in effect."""
        positional = [str(found["repository"])] if flag.name == _REPOSITORY and "repository" in found else []
        if chosen is not None:
            return Given(flag, chosen[1], chosen[0])
        if flag.key in found or positional:
            return Given(flag, positional + self._texts_in(words, flag), COMMAND_LINE)
        return Given(flag, None, DEFAULT)

    def _value(self, flag: Flag, source: str, texts: Sequence[str]) -> Any:
        """The parsed value of a flag. Raises ServerError if it is wrong."""
        try:
            found = self._serve.parse_args([f"{flag.name}={text}" for text in texts])
        except ServerError as error:
            reason = error.reason if isinstance(error, FlagError) else str(error)
            raise SettingError(f"{_place(source, flag.name)}: {reason}") from None
        return getattr(found, flag.key)

    # Variables

    def _variables(self) -> dict[str, tuple[str, list[str]]]:
        """The values of each flag that a variable sets, with the variable's name."""
        known = {variable_of(name): flag for name, flag in self._named.items()}
        found, unknown = {}, []
        for variable, value in self._environ.items():
            if not variable.startswith(PREFIX) or variable in _OTHERS:
                continue
            flag = known.get(variable)
            if flag is None:
                if not _OF_KUBERNETES.fullmatch(variable.removeprefix(PREFIX)):
                    unknown.append(variable)
            elif value:
                found[flag.name] = (variable, _texts(flag, variable, value))
        self.warnings = tuple(_unknown_variable(variable, known) for variable in sorted(unknown))
        return found

    # The file

    def _file(self, path: Path) -> dict[str, tuple[str, list[str]]]:
        """The values of each flag in the file, with the file's path. Raises ServerError if the file cannot be used."""
        known = {name.removeprefix("--"): flag for name, flag in self._named.items() if name != _CONFIG_FILE}
        found = {}
        for key, value in read_config_file(path).items():
            flag = known.get(key)
            if flag is None:
                similar = closest(key.replace("_", "-"), known)
                advice = f"Did you mean {similar}?" if similar else "The keys are the flags of `pybackend serve`."
                raise SettingError(f"{path}: there is no setting '{key}'. {advice}")
            try:
                texts = texts_of(value, as_written=flag.is_text, repeatable=flag.repeats)
            except ValueError as error:
                raise SettingError(f"{path}, {key}: {error}") from None
            if texts:
                found[flag.name] = (str(path), texts)
        return found


def variable_of(flag: str) -> str:
    """The variable that sets a flag."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _texts(flag: Flag, variable: str, value: str) -> list[str]:
    """The values in a variable: of a repeatable flag one a line, or a list in JSON.

    Raises ServerError if the list is malformed.
    """
    if not flag.repeats:
        return [value]
    if not value.startswith("["):
        return [line for line in value.splitlines() if line]
    try:
        texts = json.loads(value)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SettingError(
            f"the variable {variable} begins with '[' and is not a list of texts in JSON, such as "
            '["first", "second"]: write that, or one value a line.'
        )
    return texts


def _place(source: str, flag: str) -> str:
    return f"the variable {source}" if source.startswith(PREFIX) else f"{source}, {flag.removeprefix('--')}"


def _unknown_variable(variable: str, known: Iterable[str]) -> str:
    similar = closest(variable.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known])
    advice = f"did you mean {PREFIX}{similar}?" if similar else "`pybackend serve --help` lists the flags"
    return f"the variable {variable} sets no flag of `pybackend serve` and has no effect: {advice}"
