"""``pybackend new``: writes a model to begin with, and a test and a client for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.model_names import check_new_name
from pybackend.cli.output import print_text
from pybackend.errors import ServerError

TEMPLATES = {
    "plain": "one response to each request",
    "text": "labels for texts",
    "image": "labels for pictures, with Pillow",
    "decoupled": "any number of responses to each request",
    "bls": "a model that calls another one",
    "sequence": "requests that build on each other",
    "ensemble": "two models as the steps of one",
}

_NEEDS = {"image": {"PIL": "pillow"}}
"""Packages of a template's files by module, beside those of pybackend."""

_DIRECTORY = Path(__file__).resolve().parents[1] / "templates"
_PLACEHOLDER = "my_model"


def make_parser() -> CommandParser:
    """The parser of ``new``'s arguments."""
    parser = CommandParser(
        prog="pybackend new",
        usage="pybackend new NAME [DIRECTORY] [--template=TEMPLATE]",
        description="Writes a model with a configuration, a test and a client. They work as they are: change them step by step.",
        epilog="templates: " + "; ".join(f"{name}: {text}" for name, text in TEMPLATES.items()),
    )
    add = parser.add_argument
    add("name", metavar="NAME", help="the model's name")
    add("directory", nargs="?", type=Path, metavar="DIRECTORY", help="directory of models to write into [NAME]")
    add("--template", choices=list(TEMPLATES), default="plain", help="kind of model [plain]")
    return parser


def run_new(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    given = parser.parsed(arguments)
    check_new_name(given.name, parser)
    directory = Path(given.name) if given.directory is None else given.directory
    written = _write(_files(given.template, given.name), directory)
    if _is_in_a_clone(directory) and not (directory / "pytest.ini").exists():
        # Else pytest would read the settings of the clone's own tests, and refuse those that its plugins do not know.
        (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        written.append(directory / "pytest.ini")
    for path in written:
        print_text(f"wrote {path}")
    shown, client = directory, next(path for path in written if path.name.startswith("client_"))
    print_text(
        f"\n{_install(_NEEDS.get(given.template, {}))}pybackend dev {shown}   # serves the directory, and loads what you save\n"
        f"python {client}   # sends a request\n"
        f"{_install({'pytest': 'pytest'})}pytest {shown}   # tests without a server"
    )
    return 0


def _is_in_a_clone(directory: Path) -> bool:
    """Whether a directory lies in a clone of pybackend."""
    settings = (parent / "pyproject.toml" for parent in directory.resolve().parents)
    nearest = next((file for file in settings if file.is_file()), None)
    return nearest is not None and '\nname = "pybackend"\n' in nearest.read_text(encoding="utf-8", errors="replace")


def _install(packages: Mapping[str, str]) -> str:
    """The command before one that needs packages, by module; ``""`` where they are."""
    missing = [package for module, package in packages.items() if not find_spec(module)]
    return f"python -m pip install {' '.join(missing)} && " if missing else ""


def _files(template: str, name: str) -> dict[Path, str]:
    """The texts of a template's files by path, with the model's name in both."""
    source = _DIRECTORY / template
    module = re.sub(r"\W", "_", name)  # pytest imports the file of tests
    files = {}
    for path in sorted(path for path in source.rglob("*") if path.is_file() and path.parent.name != "__pycache__"):
        parts = path.relative_to(source).parts
        text = path.read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
        files[Path(*(part.replace(_PLACEHOLDER, module if len(parts) == 1 else name) for part in parts))] = text
    return files


def _write(files: dict[Path, str], directory: Path) -> list[Path]:
    """Write all files, or none if one of them, or a model of the name, exists."""
    tops = {directory / path.parts[0] for path in files}
    for path in sorted(tops):
        if os.path.lexists(path):
            raise ServerError(f"{path} exists already, and nothing was written: choose another name or directory")
    try:
        for path, text in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServerError(f"cannot write {error.filename}: {error.strerror}") from None
    return [directory / path for path in files]
