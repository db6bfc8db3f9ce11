"""Every memory of requests and answers stands in the page about the hot path, with its bounds."""

import ast
import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "host" / "pybackend"
PAGE = ROOT / "docs" / "architecture" / "hot-path.md"
ROW = re.compile(r"\| [^|]+ \| `([\w/]+\.py)` \| `(\w+)` \| ([\d,]+) \| ([\d,]+|-) \| [^|]+ \|")


def is_memory(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Recurring"


def name_of(target: Any) -> str:
    return target.attr if isinstance(target, ast.Attribute) else target.id


def memories_of(source: Path) -> Counter[tuple[str, str, int, int]]:
    """File, name, entries and bytes of one."""
    tree, file = ast.parse(source.read_text()), source.relative_to(SERVER)
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign) and is_memory(node.value)]
    assert len(made) == sum(map(is_memory, ast.walk(tree))), f"{file}: give each memory a name where it is made"
    found: Counter[tuple[str, str, int, int]] = Counter()
    for node in made:
        module = importlib.import_module(".".join(("pybackend", *file.with_suffix("").parts)))
        bounds = [eval(ast.unparse(each), vars(module)) for each in node.value.args]  # type: ignore[union-attr]
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        found[str(file), name_of(target), bounds[0], sum(bounds[1:])] += 1
    return found


def test_the_page_lists_all_memories_with_their_bounds() -> None:
    made = sum(map(memories_of, SERVER.rglob("*.py")), Counter())
    rows = ROW.findall(PAGE.read_text())
    numbers = {"-": "0"}
    listed = Counter(
        (file, name, *(int(numbers.get(each, each).replace(",", "")) for each in bounds))
        for file, name, *bounds in rows
    )
    assert listed == made


def test_no_function_keeps_results_without_a_bound() -> None:
    """On a request's path: clients would choose what is kept."""
    kept = Counter(
        number
        for room in ("frontend", "protocol", "engine", "inference")
        for source in (SERVER / room).rglob("*.py")
        for number in re.findall(r"@(?:functools\.)?(?:cache\b|lru_cache(?:\(maxsize=\w+\))?)", source.read_text())
    )
    assert set(kept) <= {"@lru_cache(maxsize=256)", "@lru_cache(maxsize=2)"}
