"""Advice to install an extra: each command is one for the installation that prints it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

EXTRAS = """\
Requires-Dist: numpy>=1.26
Requires-Dist: onnxruntime>=1.17; extra == 'onnx'
Requires-Dist: tensorflow-cpu>=2.16; (platform_machine == 'x86_64') and extra == 'tensorflow'
Requires-Dist: other; extra == 'onnxes'
"""
HERE = f"{sys.executable} -m pip"


def _printed(installed: Path, *arguments: str) -> str:
    """What an interpreter says that has pybackend_wire, and that finds this installation of pybackend alone."""
    code = "import sys\nfrom pybackend_wire.installation import install_command\nprint(install_command(*sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": f"{installed}:{ROOT / 'stub'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip("\n")


@pytest.fixture
def installed(tmp_path):
    """Writes what pip writes down of an installation; returns where it is."""

    def write(origin: dict[str, object] | None = None) -> Path:
        noted = tmp_path / "site" / "pybackend-0.1.dist-info"
        noted.mkdir(parents=True)
        (noted / "METADATA").write_text(f"Metadata-Version: 2.3\nName: pybackend\nVersion: 0.1\n{EXTRAS}")
        if origin is not None:
            (noted / "direct_url.json").write_text(json.dumps(origin))
        return tmp_path / "site"

    return write


def test_an_editable_clone(installed, tmp_path):
    clone = tmp_path / "my clone"
    clone.mkdir()
    site = installed({"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert _printed(site, "onnx") == f"`{HERE} install --editable '{clone}[onnx]'`"
    assert _printed(site) == f"`{HERE} install --editable '{clone}'`"
    assert _printed(site, "", "/opt/p/bin/pip") == f"`/opt/p/bin/pip install '{clone}'`"  # a copy, for others


def test_a_clone(installed, tmp_path):
    assert (
        _printed(installed({"url": tmp_path.as_uri(), "dir_info": {}}), "onnx")
        == f"`{HERE} install '{tmp_path}[onnx]'`"
    )


def test_a_wheel(installed, tmp_path):
    wheel = tmp_path / "pybackend-0.1-py3-none-any.whl"
    wheel.touch()
    site = installed({"url": wheel.as_uri(), "archive_info": {}})
    assert _printed(site, "onnx") == f"`{HERE} install '{wheel}[onnx]'`"


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (
            {"url": "https://example.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "pybackend[onnx] @ git+https://example.org/p.git@0a1b",
        ),
        ({"url": "https://example.org/p.whl", "archive_info": {}}, "pybackend[onnx] @ https://example.org/p.whl"),
    ],
)
def test_a_place_on_the_network(installed, origin, requirement):
    assert _printed(installed(origin), "onnx") == f"`{HERE} install '{requirement}'`"


@pytest.mark.parametrize("origin", [None, {"url": "file:///gone/clone", "dir_info": {}}])
def test_where_the_origin_is_unknown_or_gone_it_names_the_packages(installed, origin):
    """Never pybackend by its name alone: that is a stranger's to take."""
    site = installed(origin)
    assert _printed(site, "onnx") == f"`{HERE} install 'onnxruntime>=1.17'`"
    assert _printed(site, "tensorflow") == (
        f"""`{HERE} install 'tensorflow-cpu>=2.16; platform_machine == '"'"'x86_64'"'"''`"""
    )
    assert _printed(site) == "`pip install .` in a clone of pybackend"


def test_without_a_trace_it_is_for_a_clone(tmp_path):
    assert _printed(tmp_path, "onnx") == "`pip install '.[onnx]'` in a clone of pybackend"
