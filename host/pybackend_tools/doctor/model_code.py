"""Checks a model's code by its syntax tree. No part of it is imported or run."""

import ast
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.author_files import read_regular
from pybackend.spelling import closest

CLASS_NAME = "TritonPythonModel"

_MOST_BYTES = 16 * 1024 * 1024
_OPTIONAL_METHODS = ("initialize", "finalize", "auto_complete_config", "is_ready")
_ARGUMENTS = {
    "initialize": ("self", "args"),
    "execute": ("self", "requests"),
    "finalize": ("self",),
    "is_ready": ("self",),
}
_SIMILAR = 0.85
_HERE = sys.version_info[:2]

OWN_PYTHON = ".".join(map(str, _HERE))
"""The version of the server's Python."""


@dataclass
class CodeReport:
    """The findings about one file."""

    errors: list[str] = field(default_factory=list)  # one sentence each; the model could not be loaded
    warnings: list[str] = field(default_factory=list)
    # the class has ``auto_complete_config``, or may have it; False if the file cannot be parsed
    completes_config: bool = False


def examine_code(path: Path, python: str) -> CodeReport:
    """Check a model file. Blocking.

    ``python``: the version of the Python that will run it, such as ``3.8.10``; empty if unknown.
    """
    report = CodeReport()
    try:
        source = read_regular(path, _MOST_BYTES)
    except OSError as error:
        report.errors.append(f"cannot read {path}: {error.strerror}")
        return report
    try:
        tree = _parsed(source, path, _version(python))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line} of {path}" if line else str(path)
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        named = ".".join(map(str, _version(python)))
        # The grammar of a newer Python than this one is not known here.
        sure = bool(python) and _version(python) <= _HERE
        (report.errors if sure else report.warnings).append(f"{where} is not valid Python {named}: {reason}")
        return report
    _examine_class(tree, path, report)
    return report


def _version(python: str) -> tuple[int, int]:
    parts = python.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else _HERE


def _parsed(source: bytes, path: Path, version: tuple[int, int]) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in the author's strings
        tree = ast.parse(source, str(path), feature_version=version if version < _HERE else None)
        compile(
            source, str(path), "exec", dont_inherit=True
        )  # finds what is wrong only where it stands, such as `await`
        return tree


def _examine_class(tree: ast.Module, path: Path, report: CodeReport) -> None:
    report.completes_config = True
    bound: dict[str, ast.stmt] = {}
    for statement in _top_level(tree.body):
        for name in _bound_names(statement):
            bound[name] = statement
    if CLASS_NAME not in bound:
        if "*" not in bound:  # otherwise another module may define it
            classes = [name for name, statement in bound.items() if isinstance(statement, ast.ClassDef)]
            near = closest(CLASS_NAME, classes, 0.6)
            advice = f"did you mean '{near}'?" if near else "the server makes objects of that class"
            report.errors.append(f"{path} must define class {CLASS_NAME}: {advice}")
        return
    definition = bound[CLASS_NAME]
    if not isinstance(definition, ast.ClassDef) or definition.bases or definition.keywords or definition.decorator_list:
        return  # its methods may come from elsewhere
    attributes = {name for statement in _top_level(definition.body) for name in _bound_names(statement)}
    assigned = {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    report.completes_config = "auto_complete_config" in attributes
    if "__getattr__" in attributes:
        return
    if "execute" not in attributes | assigned:
        near = closest("execute", attributes, _SIMILAR)
        advice = f"did you mean '{near}'?" if near else "it answers the requests"
        report.errors.append(f"{path}: {CLASS_NAME} has no method execute: {advice}")
    for function in definition.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not function.decorator_list:
            _examine_arguments(function, path, report)
    for name in _OPTIONAL_METHODS:
        near = "" if name in attributes else closest(name, [each for each in attributes if each[:1] != "_"], _SIMILAR)
        if near:
            report.warnings.append(
                f"{path}: {CLASS_NAME} has no method {name}; did you mean '{near}'? The server does not call '{near}'"
            )


def _examine_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path, report: CodeReport) -> None:
    """Check that a method without a decorator takes what the server calls it with."""
    names = _ARGUMENTS.get(function.name)
    given = function.args
    if names is None or (given.vararg is not None and len(given.posonlyargs + given.args) <= len(names)):
        return
    most = len(given.posonlyargs) + len(given.args)
    lacks = any(default is None for default in given.kw_defaults)
    if lacks or not most - len(given.defaults) <= len(names) <= most:
        report.errors.append(
            f"line {function.lineno} of {path}: the server calls {function.name} with other arguments: write "
            f"`def {function.name}({', '.join(names)})`"
        )


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, and of the branches and loops in it."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _top_level(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _top_level(handler.body)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds; ``*`` for an unknown number of names."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from _bound_by_call(statement.value)


def _bound_by_call(call: ast.Call) -> Iterator[str]:
    """``exec``, ``globals().update`` and their like may bind any name."""
    if any(isinstance(node, ast.Name) and node.id in {"exec", "globals", "setattr"} for node in ast.walk(call)):
        yield "*"
