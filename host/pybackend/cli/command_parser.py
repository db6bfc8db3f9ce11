"""The parser of command lines, and its error."""

from __future__ import annotations

import argparse
import re
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


class CommandParser(argparse.ArgumentParser):
    """Reports command-line mistakes in the wording that users of the reference know."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError` for a mistake that argparse found."""
        about = _ABOUT_FLAG.fullmatch(message)
        if about is not None:
            flag, reason = about[1].partition("=")[0], about[2]
            raise FlagError(flag, f"{reason}{self._form(flag, reason)}", self.format_usage())
        raise UsageError(message, self.format_usage())

    def _form(self, flag: str, reason: str) -> str:
        """How to write a flag whose value is missing."""
        action = self._option_string_actions.get(flag)
        return f": write {flag}={action.metavar}" if action is not None and reason.startswith("expected") else ""

    def refuse(self, rest: str) -> NoReturn:
        """Raise :class:`UsageError` for a word that is neither a flag nor an expected argument."""
        if not rest.startswith("-"):
            raise UsageError(f"Unexpected argument: {rest}", self.format_usage())
        name = rest.partition("=")[0]
        similar = closest(name, self._option_string_actions)
        advice = f"Did you mean {similar}?" if similar else f"`{self.prog} --help` lists the flags"
        raise UsageError(f'Bad option: "{name}". {advice}', self.format_usage())
