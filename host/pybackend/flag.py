"""One flag of ``pybackend serve``, as the parser, the other sources, ``--print-config`` and the manual need it."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from pybackend import __version__
from pybackend.settings import Settings

OF_SETTINGS: Any = object()
"""The default of a flag is that of its field in the settings."""


TRUE, FALSE = {"true", "on", "1"}, {"false", "off", "0"}


def boolean(text: str) -> bool:
    """Parse ``true``, ``on``, ``1``, ``false``, ``off`` or ``0``, in any case."""
    if text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}. Write true or false")


def integer(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """A parser for whole numbers between ``least`` and ``most``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"Invalid option value. Got {text}, expected a whole number{_without_unit(text)}"
            ) from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"Provided option value is out of bound. Got {text}, expected {least} to {most}"
            )
        return number

    return parse


def _without_unit(text: str) -> str:
    size = re.fullmatch(r"(\d{1,9})\s*([KMGT])i?B?", text, re.IGNORECASE)
    if size is None:
        return ""
    factor = 1024 ** ("KMGT".index(size[2].upper()) + 1)
    return f" without a unit: {size[1]} {size[2].upper()}iB are {int(size[1]) * factor}"


@cache
def _defaults() -> Settings:
    return Settings(repositories=())


@dataclass(frozen=True, slots=True)
class Flag:
    """A row of the table of flags."""

    name: str  # with its hyphens; without them, the name of the command's argument
    metavar: str
    text: str
    # path of its field in the settings, such as ``http.port``; empty if a rule decides
    to: str = ""
    read: Callable[[str], Any] | None = None  # parses a value, None for text
    then: Callable[[Any], Any] | None = None  # makes the field's value from the flag's
    default: Any = OF_SETTINGS  # the value if no source has one; :data:`OF_SETTINGS` for the field's
    default_text: str = ""  # the default as a reader should see it, if the value says too little
    page: str = ""  # the meaning in the manual, in Markdown, if that is more than ``text``
    choices: Sequence[str] | None = None  # the only values
    bare: Any = None  # the value of the flag without a value, None if it needs one
    repeats: bool = False  # it may be given several times
    alias: str = ""  # an older name
    action: str = ""  # argparse's, of a flag that asks for something else than a server
    secret: re.Pattern[str] | None = None  # the part of its value that only the server should know

    @property
    def names(self) -> tuple[str, ...]:
        """The name, and the older one if there is one."""
        return (self.name, self.alias) if self.alias else (self.name,)

    @property
    def key(self) -> str:
        """The name of the parsed value."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def usual(self) -> Any:
        if self.repeats:
            return []
        if self.default is not OF_SETTINGS:
            return self.default
        return attrgetter(self.to)(_defaults()) if self.to else None

    @property
    def usual_value(self) -> Any:
        """The same as it is parsed."""
        usual = self.usual
        return self.read(usual) if isinstance(usual, str) and self.read else usual

    @property
    def is_text(self) -> bool:
        """True if it takes any text."""
        return self.read in {None, Path} and self.choices is None

    @property
    def shown_default(self) -> str:
        """The default for a reader; empty if there is nothing to say."""
        value = self.usual
        if self.default_text or value in (None, "", [], frozenset()):
            return self.default_text
        return str(value).lower() if isinstance(value, bool) else str(value)

    def add_by(self, add_argument: Callable[..., Any]) -> None:
        """Add the flag by this method of a parser, or of a group of one, which stores it only if it is given."""
        options: dict[str, Any] = {"help": self.text}
        if self.action == "version":
            options["version"] = f"pybackend {__version__}"
        if self.action:
            add_argument(self.name, action=self.action, **options)
            return
        if self.shown_default:
            options["help"] += f" [{self.shown_default}]"
        if self.repeats:
            options["action"] = "append"
        if self.bare is not None:
            options |= {"nargs": "?", "const": self.bare}
        if not self.name.startswith("-"):
            options |= {"nargs": "?", "default": None}
        if self.read is not None:
            options["type"] = self.read
        add_argument(
            *self.names, choices=self.choices, metavar=self.metavar, **({"default": argparse.SUPPRESS} | options)
        )


@dataclass(frozen=True)
class FlagGroup:
    """Flags with one heading."""

    title: str
    flags: tuple[Flag, ...]


def switch(
    name: str, text: str, to: str = "", *, default: bool | None = None, depends: bool = False, **more: Any
) -> Flag:
    """A flag that is true or false; without a value it is true.

    ``default``: its usual value, None for the field's. ``depends``: other settings decide the value if it is not given;
    it is None then.
    """
    if depends:
        more |= {"default": None, "default_text": str(default).lower()}
    elif default is not None:
        more["default"] = default
    return Flag(name, "BOOL", text, to, boolean, bare=True, **more)


class FlagOwner(Protocol):
    """An object around the server that has flags of ``pybackend serve``."""

    @property
    def flags(self) -> Mapping[str, Sequence[Flag]]:
        """By the heading of their group."""
        ...

    def decide(self, settings: Settings, given: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
        """The settings, with what the flags select, in :attr:`Settings.extensions` or elsewhere.

        Raises ServerError if flags contradict each other.
        """
        ...


def add_groups(parser: argparse.ArgumentParser, groups: Iterable[FlagGroup]) -> None:
    """Add the flags of groups to a parser."""
    for group in groups:
        added = parser.add_argument_group(group.title)
        for flag in group.flags:
            flag.add_by(added.add_argument)
