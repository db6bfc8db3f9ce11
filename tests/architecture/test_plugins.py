"""The table of what stands around the server: its rows exist, and one that is missing is said in a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pybackend import plugins
from pybackend.flag import Flag
from pybackend.frontend.http.api import Apis
from pybackend.plugins import APIS, COMMANDS, PluginRow

_ALONE = """
import sys
MISSING = {missing!r}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(f"{{name}}.".startswith(f"{{each}}.") for each in MISSING):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from pybackend.cli import main
sys.exit(main({arguments!r}))
"""


def rows() -> dict[str, PluginRow[Any]]:
    """All rows, by the module and the object that they name."""
    found: list[PluginRow[Any]] = []

    def collect(value: object) -> None:
        if isinstance(value, PluginRow):
            found.append(value)
        elif isinstance(value, dict):
            for each in value.values():
                collect(each)
        elif isinstance(value, tuple):
            for each in value:
                collect(each)

    for value in vars(plugins).values():
        collect(value)
    return {f"{row.module}.{row.object}": row for row in found}


ROWS = rows()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_names_an_object_and_the_flags_that_it_has(row: PluginRow[Any]) -> None:
    owner = row.load()
    flags: list[Flag] = [flag for group in getattr(owner, "flags", {}).values() for flag in group]
    assert sorted(row.flags) == sorted(flag.name for flag in flags)


def test_all_commands_are_in_the_table() -> None:
    assert len(COMMANDS) == 5
    assert len(ROWS) > 30


def without(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, where these modules cannot be imported."""
    code = _ALONE.format(missing=missing, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("row", "arguments"),
    [
        (plugins.OPENAI, ["serve", "models", "--allow-openai"]),
        (plugins.RAY, ["serve", "models", "--on=ray"]),
        (plugins.RAY, ["serve", "models", "--replicas=2"]),
        (plugins.CONSOLE, ["serve", "models", "--console"]),
        (plugins.STORAGE, ["serve", "s3://bucket/models"]),
        (plugins.CACHES["redis"], ["serve", "models", "--cache-config=redis,host=h,port=1"]),
        (plugins.CLOUDS, ["serve", "models", "--allow-sagemaker"]),
        (COMMANDS["write models"]["new"].run, ["new", "m"]),
    ],
    ids=lambda value: value.what if isinstance(value, PluginRow) else "",
)
def test_what_needs_a_missing_package_ends_in_one_sentence(
    row: PluginRow[Any], arguments: list[str], tmp_path: Path
) -> None:
    flag_modules = {each.module for each in ROWS.values() if each.what == row.what}
    done = without(sorted(flag_modules), *arguments)
    assert done.returncode == 1
    assert f"Without it, there is no support for {row.what}: install all of pybackend" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_command_may_need_another_package_than_its_own() -> None:
    done = without(["pybackend_addons"], "analyze", "models")
    assert done.returncode == 1
    assert "lacks the package pybackend_addons. Without it, there is no support for `pybackend analyze`" in done.stderr


def test_a_module_that_a_plugin_lacks_is_not_taken_for_the_plugin() -> None:
    row: PluginRow[Any] = PluginRow("nothing", "tests.architecture.lacks_a_module", "NOTHING")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        row.load()


class Ungrouped:
    """An API whose route nobody could restrict."""

    def owns(self, _path: str) -> bool:
        return False

    def group_of(self, _path: str) -> None:
        return None

    def error_body(self, _message: str, _status: int) -> bytes:
        return b""

    def advice(self, *, is_served: bool) -> str:
        return str(is_served)

    def add_routes(self, app: Any, _frontend: Any) -> None:
        app.get("/v9/open")(lambda: None)


def test_a_route_without_a_group_is_refused() -> None:
    from fastapi import FastAPI

    frontend: Any = None
    with pytest.raises(ValueError, match="the route /v9/open has no group"):
        Apis({"open": Ungrouped()}, ["open"]).add_routes(FastAPI(), frontend)


@pytest.mark.parametrize("name", APIS)
def test_every_route_of_an_api_has_a_group(name: str) -> None:
    """:meth:`Apis.add_routes` refuses others, when the server starts."""
    from fastapi import FastAPI

    class Frontend:
        engine = None

    app = FastAPI()
    before = len(app.routes)
    frontend: Any = Frontend()
    plugins.installed_apis([name]).add_routes(app, frontend)
    assert len(app.routes) > before
