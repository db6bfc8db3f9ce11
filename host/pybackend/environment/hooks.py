"""Activation hooks: shell scripts that packages install in ``etc/conda/activate.d``, and the variables they set.

A shell runs them in order, as ``conda activate`` does, and prints its variables before the first and after each one.
The caller confines the shell; this module provides the command and parses the output, trusting nothing in it.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.environment.environment import may_be_set

VARIABLES_HOOK = "zz_pybackend_variables.sh"
"""The hook in which ``pybackend pack`` repeats the author's variables, for users who activate by hand."""

MOST_OUTPUT_BYTES = 4 * 1024 * 1024
"""Limit on the shell's output with its variables."""

_MOST_SCRIPT_BYTES = 100_000
"""The kernel accepts no argument above 128 KiB."""

_MOST_VARIABLES_BYTES = 128 * 1024
"""Limit on all variables together: a process cannot start with a much larger environment."""

_MOST_SAID_CHARACTERS = 200
_DIRECTORY = Path("etc", "conda", "activate.d")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHELLS_OWN = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
_PATH = "PATH"


@dataclass(frozen=True)
class ShellRun:
    """The outcome of a shell."""

    output: bytes
    said: bytes
    ending: str  # a clause such as ``ended the shell with status 1``; empty if the script ran to its end
    left: int


@dataclass(frozen=True)
class HookEffect:
    """The changes made by an environment's hooks."""

    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    path: tuple[str, ...] = ()  # directories of the environment that they add to ``PATH``
    complaints: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of all changed variables."""
        return sorted({*self.variables, *self.unset, *([_PATH] if self.path else [])})

    def applied(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The given variables with the changes applied."""
        changed = {name: value for name, value in variables.items() if name not in self.unset} | dict(self.variables)
        if self.path:
            changed[_PATH] = os.pathsep.join([*self.path, *filter(None, [variables.get(_PATH)])])
        return changed


NOTHING = HookEffect()


def hooks_of(prefix: Path, *, has_manifest: bool = False) -> list[Path]:
    """The hooks of an environment, in execution order.

    Args:
        has_manifest: the manifest lists the author's variables, so their hook need not run.
    """
    try:
        names = sorted(name for name in os.listdir(prefix / _DIRECTORY) if name.endswith(".sh"))
    except OSError:
        return []
    if has_manifest and names == [VARIABLES_HOOK]:
        return []
    return [prefix / _DIRECTORY / name for name in names]


def shell_command(prefix: Path, hooks: Sequence[Path]) -> list[str]:
    """The shell that runs these hooks and prints its variables: the system's, or else the environment's.

    Raises:
        FileNotFoundError: there is no shell, or no program that prints variables.
        ValueError: there are too many hooks.
    """
    own = str(prefix / "bin")
    shell = _program([f"{place}/{name}" for name in ("bash", "sh") for place in ("/bin", "/usr/bin")], own, "sh")
    tell = shlex.quote(_program(["/usr/bin/env", "/bin/env"], own, "env")) + " -0; printf '=\\0'"
    lines = ['cd "$HOME"', f"printf '=0\\0'; {tell}"]
    for hook in hooks:
        lines += [f". {shlex.quote(str(hook))} 1>&2", f"printf '=%s\\0' \"$?\"; {tell}; printf '\\0' 1>&2"]
    script = "\n".join(lines) + "\n"
    if len(os.fsencode(script)) > _MOST_SCRIPT_BYTES:
        raise ValueError(f"there are {len(hooks)} of them, which is too many")
    return [shell, "-c", script]


def _program(usual: Sequence[str], own: str, name: str) -> str:
    for path in (*usual, f"{own}/{name}"):
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"there is no {usual[0]}")


def effect_of(run: ShellRun, hooks: Sequence[Path], prefix: Path, scratch: str) -> HookEffect:
    """The effect reported by a shell.

    Args:
        scratch: the shell's private directory, already deleted: variables that refer to it are ignored.
    """
    told = _told(run.output)
    said = [_last_words(text) for text in run.said.split(b"\0")]
    said += [""] * (len(hooks) + 1 - len(said))
    if not told:
        return HookEffect(complaints=(_complaint(hooks, run.ending or "told nothing", said[0]),))
    complaints = []
    for hook, (status, _), words in zip(hooks, told[1:], said, strict=False):
        if status != "0" and words:  # a last line such as `[ -d x ] && export X=x` is not a failure
            complaints.append(_complaint([hook], f"returned {status}", words))
    if len(told) <= len(hooks):
        at = len(told) - 1
        after = ", before the hooks after it ran" if hooks[at + 1 :] else ""
        complaints.append(_complaint([hooks[at]], (run.ending or "ended the shell") + after, said[at]))
    elif run.left:
        complaints.append(_complaint(hooks, f"left processes behind ({run.left}); they were killed", ""))
    effect = _difference(told[0][1], told[-1][1], prefix, scratch)
    if sum(len(os.fsencode(name + value)) for name, value in effect.variables.items()) > _MOST_VARIABLES_BYTES:
        complaints.append(_complaint(hooks, f"set more than {_MOST_VARIABLES_BYTES >> 10} KiB of variables", ""))
        effect = NOTHING
    return HookEffect(effect.variables, effect.unset, effect.path, tuple(complaints))


def _told(output: bytes) -> list[tuple[str, dict[str, str]]]:
    """The statuses and variables that the shell printed, before the hooks and after each of them."""
    blocks: list[tuple[str, dict[str, str]]] = []
    status, variables = None, {}
    for record in output.split(b"\0")[:-1]:
        name, _, value = os.fsdecode(record).partition("=")
        if name:
            variables[name] = value
        elif status is None:
            status, variables = value, {}
        elif not value:
            blocks.append((status, variables))
            status = None
        else:
            break  # output of a hook in between cannot be parsed
    return blocks


def _difference(before: Mapping[str, str], after: Mapping[str, str], prefix: Path, scratch: str) -> HookEffect:
    own = {name for name in {*before, *after} if _NAME.fullmatch(name) and name not in _SHELLS_OWN and may_be_set(name)}
    variables = {
        name: value
        for name, value in sorted(after.items())
        if name in own and before.get(name) != value and scratch not in value
    }
    unset = tuple(sorted(name for name in before if name in own and name not in after))
    had = before.get(_PATH, "").split(os.pathsep)
    added = [path for path in after.get(_PATH, "").split(os.pathsep) if path not in had]
    path = tuple(dict.fromkeys(path for path in added if Path(os.path.normpath(path)).is_relative_to(prefix)))
    return HookEffect(variables, unset, path)


def _complaint(hooks: Sequence[Path], what: str, said: str) -> str:
    """A sentence that names the hook, as far as it is known, and what it did."""
    names = str(hooks[0]) if len(hooks) == 1 else f"one of {hooks[0].parent}/*.sh"
    return f"{names} {what}" + (f": {said}" if said else "")


def _last_words(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].strip() if lines else ""
    return "".join(character if character.isprintable() else "?" for character in last)[:_MOST_SAID_CHARACTERS]
