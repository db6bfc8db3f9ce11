"""The parser of command lines, and its error."""

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from pybackend.errors import ServerError
from pybackend.spelling import closest


class UsageError(ServerError):
    """The command line is wrong; ``usage`` shows the correct form."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class FlagError(UsageError):
    """The value of one flag is wrong; ``reason`` says why, without the flag's name."""

    def __init__(self, flag: str, reason: str, usage: str) -> None:
        super().__init__(f'Bad option: "{flag}". {reason}', usage)
        self.reason = reason


# How argparse names the offending flag; the aliases of one flag are joined by slashes.
_ABOUT_FLAG = re.compile(r"(?:argument|ambiguous option:) (-[^/:\s]+)\S* *(.*)", re.DOTALL)


class PlainParser(argparse.ArgumentParser):
    """Raises :class:`UsageError` for a mistake in a command line."""

    def error(self, message: str) -> NoReturn:
        """Raise the error, in argparse's words."""
        self.refuse_with(f"{self.prog}: {message}")

    def refuse_with(self, message: str) -> NoReturn:
        """Raise the error with a text of one's own."""
        raise UsageError(message, self.format_usage())


class CommandParser(PlainParser):
    """Reports command-line mistakes in the wording that users of the reference know."""

    def error(self, message: str) -> NoReturn:
        """Raise the error for a mistake that argparse found."""
        about = _ABOUT_FLAG.fullmatch(message)
        if about is not None:
            flag, reason = about[1].partition("=")[0], about[2]
            raise FlagError(flag, f"{reason}{self._form(flag, reason)}", self.format_usage())
        self.refuse_with(message)

    def parsed(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments; raises :class:`UsageError` for every unknown one."""
        given, rest = self.parse_known_args(list(arguments))
        if rest:
            self.refuse(rest[0])
        return given

    def pairs(self, flag: str, texts: Iterable[str], form: str = "NAME=VALUE") -> list[tuple[str, str]]:
        found = [text.partition("=") for text in texts]
        for name, equals, value in found:
            if not equals or not name:
                self.refuse_with(f'Bad option: "{flag}". Got {name}{equals}{value}, expected {form}')
        return [(name, value) for name, _, value in found]

    def _form(self, flag: str, reason: str) -> str:
        """How to write a flag whose value is missing."""
        action = self._option_string_actions.get(flag)
        return f": write {flag}={action.metavar}" if action is not None and reason.startswith("expected") else ""

    def refuse(self, rest: str) -> NoReturn:
        """Raise :class:`UsageError` for a word that is neither a flag nor an expected argument."""
        if not rest.startswith("-"):
            has_place = "--repository" in self._option_string_actions
            advice = f". Name the directory of models with a flag: --repository={rest}" if has_place else ""
            self.refuse_with(f"Unexpected argument: {rest}{advice}")
        name = rest.partition("=")[0]
        similar = closest(name, self._option_string_actions)
        advice = f"Did you mean {similar}?" if similar else f"`{self.prog} --help` lists the flags"
        self.refuse_with(f'Bad option: "{name}". {advice}')
