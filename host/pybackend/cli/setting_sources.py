"""The settings of ``pybackend serve`` from the command line, variables and a file, and where each came from."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.cli.config_file import read_config_file, texts_of
from pybackend.errors import ServerError
from pybackend.spelling import closest
from pybackend_wire.library_path import LIBRARY_PATH

PREFIX = "PYBACKEND_"
_OTHERS = frozenset({LIBRARY_PATH, "PYBACKEND_URL", "PYBACKEND_API_KEY"})
"""Variables with another use: for the processes of models, and for commands that talk to a server."""

COMMAND_LINE, DEFAULT = "command line", "default"

_CONFIG_FILE, _REPOSITORY = "--config-file", "--model-repository"
_ONLY_FLAGS = frozenset({"--help", "--print-config", "--version"})
"""These ask for something else than a server, so a variable or a file cannot."""

_OF_KUBERNETES = re.compile(r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)")
"""Kubernetes gives pods such variables for a service named ``pybackend``."""


@dataclass(frozen=True, slots=True)
class Given:
    """One setting in effect.

    Attributes:
        flag: the flag's name.
        is_repeatable: it may have several values.
        is_text: it takes any text.
        texts: its values as on the command line, None for the default.
        default: the value that the server uses if ``texts`` is None.
        source: :data:`COMMAND_LINE`, a variable's name, a file's path, or :data:`DEFAULT`.
    """

    flag: str
    is_repeatable: bool
    is_text: bool
    texts: Sequence[str] | None
    default: Any
    source: str


class SettingSources:
    """Completes a command line with the settings from variables and the configuration file.

    The strongest source of a setting is the command line, then the variable, then the file, then the default. The
    values of a flag that may be repeated come from one source: the strongest that has any.

    Args:
        serve: the parser of the flags. It stores the flags that are given, and no defaults, from now on.
        environ: the variables.

    Attributes:
        warnings: a sentence for each unknown variable.
        settings: the settings in effect, in the order of the flags; :meth:`complete` fills it.
    """

    def __init__(self, serve: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
        self.warnings: tuple[str, ...] = ()
        self.settings: list[Given] = []
        self._serve = serve
        self._environ = environ
        self._defaults: dict[str, Any] = {}
        self._actions: dict[str, argparse.Action] = {}
        self._names: dict[str, str] = {}
        for action in serve._actions:
            names = [name for name in action.option_strings if name.startswith("--") and name not in _ONLY_FLAGS]
            self._defaults[action.dest] = action.default
            if names:
                action.default = argparse.SUPPRESS
                self._actions[names[0]] = action
                self._names |= dict.fromkeys(names, names[0])

    def complete(self, given: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
        """All settings, with the defaults of those that no source has.

        Args:
            given: the flags of the command line.
            words: the command line.

        Raises:
            ServerError: a variable or the file has a wrong value, or the file an unknown key.
        """
        found = vars(given)
        if found["repository"] is None:
            del found["repository"]
        sources = [self._variables()]
        named = sources[0].get(_CONFIG_FILE)
        file = found.get("config_file") or (None if named is None else Path(*named[1]))
        if file is not None:
            sources.append(self._file(file))
        for flag, action in self._actions.items():
            chosen = None
            if action.dest not in found and not (flag == _REPOSITORY and "repository" in found):
                chosen = next((source[flag] for source in sources if flag in source), None)
            if chosen is not None:
                found[action.dest] = self._value(action, *chosen)
            self.settings.append(self._given(flag, action, chosen, found, words))
        for action in self._serve._actions:
            if self._defaults[action.dest] is not argparse.SUPPRESS:
                found.setdefault(action.dest, self._default(action))
        return given

    def _default(self, action: argparse.Action) -> Any:
        value = self._defaults[action.dest]
        if isinstance(value, list):
            return list(value)
        return action.type(value) if isinstance(value, str) and callable(action.type) else value

    def _texts_in(self, words: Sequence[str], action: argparse.Action) -> list[str]:
        """The values of a flag on the command line, where it may be shortened."""
        texts = []
        for place, word in enumerate(words):
            name, equals, text = word.partition("=")
            if not name.startswith("--") or not any(each.startswith(name) for each in action.option_strings):
                continue
            if name in self._names and name not in action.option_strings:
                continue
            following = words[place + 1] if place + 1 < len(words) else "-"
            if equals:
                texts.append(text)
            elif action.nargs == "?" and following.startswith("-"):
                texts.append("true")
            else:
                texts.append(following)
        return texts

    def _given(
        self,
        flag: str,
        action: argparse.Action,
        chosen: tuple[str, list[str]] | None,
        found: Mapping[str, Any],
        words: Sequence[str],
    ) -> Given:
        """The setting in effect."""
        texts: list[str] | None
        positional = [str(found["repository"])] if flag == _REPOSITORY and "repository" in found else []
        if chosen is not None:
            source, texts = chosen
        elif action.dest in found or positional:
            source, texts = COMMAND_LINE, positional + self._texts_in(words, action)
        else:
            source, texts = DEFAULT, None
        return Given(flag, _is_repeatable(action), _is_text(action), texts, self._defaults[action.dest], source)

    def _value(self, action: argparse.Action, source: str, texts: Sequence[str]) -> Any:
        """The parsed value of a flag.

        Raises:
            ServerError: it is wrong.
        """
        flag = action.option_strings[0]
        try:
            found = self._serve.parse_args([f"{flag}={text}" for text in texts])
        except ServerError as error:
            reason = re.sub(r'^Bad option: "[^"]*"\. ', "", str(error))
            raise ServerError(f"Error: {_place(source, flag)}: {reason}") from None
        return getattr(found, action.dest)

    # Variables

    def _variables(self) -> dict[str, tuple[str, list[str]]]:
        """The values of each flag that a variable sets, with the variable's name."""
        known = {variable_of(name): flag for name, flag in self._names.items()}
        found, unknown = {}, []
        for variable, value in self._environ.items():
            if not variable.startswith(PREFIX) or variable in _OTHERS:
                continue
            flag = known.get(variable)
            if flag is None:
                if not _OF_KUBERNETES.fullmatch(variable.removeprefix(PREFIX)):
                    unknown.append(variable)
            elif value:
                found[flag] = (variable, self._texts(flag, variable, value))
        self.warnings = tuple(_unknown_variable(variable, known) for variable in sorted(unknown))
        return found

    def _texts(self, flag: str, variable: str, value: str) -> list[str]:
        """The values in a variable: of a repeatable flag one a line, or a list in JSON.

        Raises:
            ServerError: the list is malformed.
        """
        if not _is_repeatable(self._actions[flag]):
            return [value]
        if not value.startswith("["):
            return [line for line in value.splitlines() if line]
        try:
            texts = json.loads(value)
        except ValueError:
            texts = None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ServerError(
                f"Error: the variable {variable} begins with '[' and is not a list of texts in JSON, such as "
                '["first", "second"]: write that, or one value a line.'
            )
        return texts

    # The file

    def _file(self, path: Path) -> dict[str, tuple[str, list[str]]]:
        """The values of each flag in the file, with the file's path.

        Raises:
            ServerError: the file cannot be used.
        """
        known = {name.removeprefix("--"): flag for name, flag in self._names.items() if flag != _CONFIG_FILE}
        found = {}
        for key, value in read_config_file(path).items():
            flag = known.get(key)
            if flag is None:
                similar = closest(key.replace("_", "-"), known)
                advice = f"Did you mean {similar}?" if similar else "The keys are the flags of `pybackend serve`."
                raise ServerError(f"Error: {path}: there is no setting '{key}'. {advice}")
            action = self._actions[flag]
            try:
                texts = texts_of(value, as_written=_is_text(action), repeatable=_is_repeatable(action))
            except ValueError as error:
                raise ServerError(f"Error: {path}, {key}: {error}") from None
            if texts:
                found[flag] = (str(path), texts)
        return found


def variable_of(flag: str) -> str:
    """The variable that sets a flag."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _is_repeatable(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)


def _is_text(action: argparse.Action) -> bool:
    return action.type in {None, Path} and action.choices is None


def _place(source: str, flag: str) -> str:
    return f"the variable {source}" if source.startswith(PREFIX) else f"{source}, {flag.removeprefix('--')}"


def _unknown_variable(variable: str, known: Iterable[str]) -> str:
    similar = closest(variable.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known])
    advice = f"did you mean {PREFIX}{similar}?" if similar else "`pybackend serve --help` lists the flags"
    return f"the variable {variable} sets no flag of `pybackend serve` and has no effect: {advice}"
