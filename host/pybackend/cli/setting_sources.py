"""The settings of ``pybackend serve`` from the command line, variables and a file, and where each came from."""

import argparse
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pybackend.cli.command_parser import FlagError
from pybackend.errors import ServerError, SettingError
from pybackend.flag import Flag
from pybackend.runner import COMMAND_LINE, DEFAULT, Given
from pybackend.spelling import closest
from pybackend_wire.confinement import LIBRARY_PATH

PREFIX = "PYBACKEND_"
_OTHERS = frozenset({LIBRARY_PATH, "PYBACKEND_URL", "PYBACKEND_API_KEY"})
"""Variables with another use: for the processes of models, and for commands that talk to a server."""

_CONFIG_FILE, _REPOSITORY = "--config-file", "--model-repository"
_OF_KUBERNETES = re.compile(r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)")
"""Kubernetes gives pods such variables for a service named ``pybackend``."""


class SettingSources:
    """Completes a command line with the settings from variables and the configuration file.

    The strongest source of a setting is the command line, then the variable, then the file, then the default. The
    values of a flag that may be repeated come from one source: the strongest that has any.
    """

    def __init__(self, serve: argparse.ArgumentParser, flags: Sequence[Flag], environ: Mapping[str, str]) -> None:
        self.warnings: tuple[str, ...] = ()  # a sentence for each unknown variable
        self.settings: list[Given] = []  # the settings in effect, in the order of the flags; :meth:`complete` fills it
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
            found.setdefault(flag.key, flag.usual_value)
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


def read_config_file(path: Path) -> Mapping[str, Any]:
    """The keys of a configuration file, with their values as TOML has them.

    Raises ServerError if the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingError(f"the configuration file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingError(f"the configuration file {path} is not UTF-8 text, which TOML is.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"the configuration file {path} is not TOML: {error}.") from None


def texts_of(value: object, *, as_written: bool, repeatable: bool) -> list[str]:
    """A value as on the command line: one text for each time that the flag would be given.

    Raises ValueError if the value has the wrong type; the text tells which one is right.

    ``value``: as TOML has it. ``as_written``: the flag takes any text; a number or a boolean is then a mistake.
    ``repeatable``: the flag may be given several times, so the value may be a list.
    """
    if isinstance(value, list):
        if not repeatable:
            raise ValueError("expected one value, got a list")
        return [text for each in value for text in texts_of(each, as_written=as_written, repeatable=False)]
    if isinstance(value, str):
        return [value]
    if as_written:
        raise ValueError(f"expected text in quotes, got {_shown(value)}")
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, int | float):
        return [str(value)]
    raise ValueError(f"expected text, a number, true or false, got {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    return str(value).lower() if isinstance(value, bool) else str(value)


_BARE = re.compile(r"true|false|0|-?[1-9][0-9]{0,18}")
"""Texts that TOML writes without quotes."""

_ESCAPES = {**{chr(code): f"\\u{code:04x}" for code in (*range(32), 127)}, '"': '\\"', "\\": "\\\\"}


def settings_text(settings: Iterable[Given]) -> str:
    """The settings as TOML, each with its source. Secrets are hidden; settings that are not set are comments."""
    return "".join(f"{_line(each)}\n" for each in settings)


def settings_in_force(settings: Iterable[Given]) -> tuple[tuple[str, str, str], ...]:
    """Name, value and source of each setting that is set. Secrets are hidden."""
    rows = ((each.flag.name, ", ".join(_shown_texts(each)), each.source) for each in settings)
    return tuple(row for row in rows if row[1])


def _shown_texts(given: Given) -> list[str]:
    """The values of a setting, with their secrets hidden."""
    texts = _default_texts(given.flag.usual) if given.texts is None else given.texts
    secret = given.flag.secret
    return list(texts) if secret is None else [secret.sub("(hidden)", text) for text in texts]


def _line(given: Given) -> str:
    flag = given.flag
    key = flag.name.removeprefix("--")
    texts = _shown_texts(given)
    if not texts:
        return f"# {key} is not set"
    shown = f"[{', '.join(map(_quoted, texts))}]" if flag.repeats else _value(texts[0], is_text=flag.is_text)
    return f"{key} = {shown}  # {given.source}"


def _default_texts(default: object) -> Sequence[str]:
    if isinstance(default, bool):
        return [str(default).lower()]
    return [str(default)] if default or default == 0 else []


def _value(text: str, *, is_text: bool) -> str:
    return text if _BARE.fullmatch(text) and not is_text else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(letter, letter) for letter in text)}"'
