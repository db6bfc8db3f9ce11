"""Compiled files: valid without a look at their source, the same every time."""

import subprocess
import sys
from pathlib import Path

import pytest

from pybackend_tools.pack.bytecode import SourceFile, compile_modules
from pybackend_tools.pack.errors import PackError

TAG = sys.implementation.cache_tag


@pytest.fixture
def sources(tmp_path):
    texts = {
        "lib/python3.x/a.py": "KEYS = {'b', 'a', 'c'} & {'a'}\nif 'x' in {'x', 'y', 'z'}:\n    raise ValueError(__file__)\n",
        "lib/python3.x/package/__init__.py": "import os\n",
        "lib/python3.x/template.py": "{{ cookiecutter }} not python\n",
        "lib/python3.x/latin.py": "X = '\xe9'\n",
        "lib/python3.x/deep.py": "(" * 5000 + ")" * 5000,
    }
    found = []
    for name, text in texts.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
        found.append(SourceFile(path, name))
    for number in range(32):  # some chunks
        path = tmp_path / "tree" / "lib/python3.x" / f"m{number}.py"
        path.write_text(f"DATA = {list(range(9000))!r}\n\ndef f(a, b={number}):\n    return a, b\n")
        found.append(SourceFile(path, f"lib/python3.x/m{number}.py"))
    return found


def _compile(sources, target, threads):
    target.mkdir()
    return compile_modules(Path(sys.executable), TAG, sources, target, threads, lambda _done, _total: None)


def test_same_bytes_with_any_number_of_processes(sources, tmp_path):
    one, four = _compile(sources, tmp_path / "one", 1), _compile(list(reversed(sources)), tmp_path / "four", 4)
    assert set(one) == set(four)
    assert {name: path.read_bytes() for name, path in one.items()} == {
        name: path.read_bytes() for name, path in four.items()
    }


def test_what_is_no_module_is_left_out(sources, tmp_path):
    names = set(_compile(sources, tmp_path / "out", 2))
    assert f"lib/python3.x/__pycache__/a.{TAG}.pyc" in names
    assert f"lib/python3.x/package/__pycache__/__init__.{TAG}.pyc" in names
    assert not any("template" in name or "latin" in name for name in names)


def test_compiled_file_is_used_unchecked_and_names_where_its_source_lies_now(sources, tmp_path):
    compiled = _compile(sources, tmp_path / "out", 1)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "__pycache__").mkdir(parents=True)
    (elsewhere / "__pycache__" / f"a.{TAG}.pyc").write_bytes(
        compiled[f"lib/python3.x/__pycache__/a.{TAG}.pyc"].read_bytes()
    )
    (elsewhere / "a.py").write_text("print('compiled again')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import a"], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert f'File "{elsewhere}/a.py", line 3' in done.stderr


def test_interpreter_that_does_not_compile(sources, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(PackError, match=r"/bin/false cannot compile modules \(status 1\)"):
        compile_modules(Path("/bin/false"), TAG, sources, tmp_path / "out", 1, lambda _done, _total: None)
