"""What `pip install .` puts on a machine: the wheel's contents, its metadata, and that it works when installed."""

import shlex
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "pybackend",
    "pybackend_addons",
    "pybackend_backends",
    "pybackend_bind",
    "pybackend_client",
    "pybackend_http2",
    "pybackend_sdk",
    "pybackend_stub",
    "pybackend_testing",
    "pybackend_tools",
    "pybackend_wire",
}
MODULES = {"triton_python_backend_utils.py", "c_python_backend_utils.py"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_top_level_names_are_exactly_ours(names):
    top_level = {name.split("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == PACKAGES | MODULES


def test_every_source_file_is_in_the_wheel_and_nothing_else(names):
    folders = [ROOT / "host", ROOT / "stub", ROOT / "sdk"]
    sources = {
        str(path.relative_to(folder))
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.parent != folder
    } | MODULES
    assert {name for name in names if ".dist-info/" not in name} == sources


def test_every_package_says_that_it_is_typed(names):
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_metadata(wheel, names):
    (metadata_name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_string(archive.read(metadata_name).decode())
        entry_points = archive.read(metadata_name.replace("METADATA", "entry_points.txt")).decode()
    assert metadata["Name"] == "pybackend"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert entry_points == (
        "[console_scripts]\npybackend = pybackend.cli:main\ntritonserver = pybackend.cli:tritonserver\n\n"
        "[mlflow.deployments]\npybackend = pybackend_tools.importing.mlflow_deployments\n\n"
        "[pytest11]\npybackend = pybackend_testing.pytest_plugin\n"
    )


def test_wheel_alone_is_importable(wheel, tmp_path):
    """Without this checkout on the path: the dependencies come from the environment that runs the tests."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import c_python_backend_utils, pybackend.cli, pybackend_stub, triton_python_backend_utils as pb_utils\n"
        "print(pb_utils.__file__, pybackend.cli.__file__, pb_utils.Tensor.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path)) == 2


def test_an_installed_wheel_names_itself_where_it_says_how_to_install_more(wheel, tmp_path):
    """pip notes where a package came from, and takes the command that is made of that."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path, wheel], check=True, capture_output=True)
    code = "from pybackend_wire.installation import install_command\nprint(install_command('onnx'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    command = done.stdout.strip().strip("`")
    assert command == f"{sys.executable} -m pip install '{wheel}[onnx]'"
    subprocess.run([*pip, "--dry-run", *shlex.split(command)[4:]], check=True, capture_output=True)
