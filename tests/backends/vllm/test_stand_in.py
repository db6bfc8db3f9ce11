"""The stand-in has no name that vLLM does not have, where vLLM is installed. Its sources are read, not imported: that
needs a GPU."""

import ast
import importlib.util
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "stand_in" / "vllm"
MODULES = sorted(str(path.relative_to(STAND_IN)) for path in STAND_IN.rglob("*.py") if path.name != "__init__.py")


@pytest.fixture(scope="module")
def installed():
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    return Path(found.origin).parent


def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}


def attributes(node: ast.ClassDef) -> set[str]:
    """Fields, members of enumerations, methods, and what the constructor sets."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(part.name)
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                names.add(target.id)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                names.add(target.attr)
    return {name for name in names if not name.startswith("_")}


def arguments(node: ast.ClassDef) -> dict[str, dict[str, list[str]]]:
    """Names of positional and of other arguments of each public method."""
    return {
        part.name: {
            "positional": [each.arg for each in part.args.args],
            "keyword": [each.arg for each in part.args.kwonlyargs],
        }
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith("_")
    }


def lineage(name: str, known: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class and its bases in the same file."""
    node = known[name]
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in known]
    return [node, *(each for base in bases for each in lineage(base, known))]


@pytest.mark.parametrize("module", MODULES)
def test_the_names_are_vllms(installed, module):
    real, own = classes(installed / module), classes(STAND_IN / module)
    assert own.keys() <= real.keys()
    for name, node in own.items():
        there = set().union(*(attributes(each) for each in lineage(name, real)))
        if name != "AsyncLLM":  # the stand-in's engine has its own state
            assert attributes(node) <= there, name
        theirs = arguments(real[name])
        for method, taken in arguments(node).items():
            assert set(taken["keyword"]) <= set(theirs[method]["keyword"]), (name, method)
            assert taken["positional"] == theirs[method]["positional"][: len(taken["positional"])], (name, method)
