"""What is read from a file that names packages, and what is said about one that is wrong."""

import pytest

from pybackend_tools.pack.errors import SpecificationError, UnpackableError
from pybackend_tools.pack.reader import read_specification
from pybackend_tools.pack.specification import (
    CondaPackages,
    CondaPrefix,
    VirtualEnvironment,
    WheelPackages,
    identity,
    index_options,
)

YML = "dependencies: [python=3.12]\n"


def _write(directory, name, text):
    path = directory / name
    path.write_text(text)
    return path


def test_environment_yml_as_conda_users_write_it(tmp_path):
    path = _write(
        tmp_path,
        "environment.yml",
        """
name: demo
channels: [conda-forge, ./local, nodefaults, conda-forge]
dependencies:
  - python=3.12
  - numpy >=1.26,<3
  - pip
  - pip:
    - -r more.txt
    - "--find-links wheels"
    - scipy==1.11 # a comment
variables: {GREETING: hello world, NUMBER: 7, EMPTY: }
prefix: /somewhere/else
""",
    )
    assert read_specification(path) == CondaPackages(
        ("conda-forge", (tmp_path / "local").as_uri()),
        ("python=3.12", "numpy >=1.26,<3", "pip"),
        ("-r more.txt", "--find-links wheels", "scipy==1.11"),
        {"GREETING": "hello world", "NUMBER": "7", "EMPTY": ""},
    )


def test_without_channels_it_is_conda_forge(tmp_path):
    assert read_specification(_write(tmp_path, "e.yaml", YML)).channels == ("conda-forge",)


@pytest.mark.parametrize(
    "text",
    [
        "dependencies: [python\n",
        "- python\n",
        "",
        "name: x\n",
        "dependencies: []\n",
        YML + "dependecies: []\n",
        YML + "zebra: 1\n",
        "dependencies: [python, {npm: [left-pad]}]\n",
        "dependencies: [python, 3.12]\n",
        "dependencies: [python, {pip: numpy}]\n",
        YML + "channels: conda-forge\n",
        YML + "channels: [defaults]\n",
        YML + "variables: [A]\n",
        YML + "variables: {A-B: 1}\n",
        YML + "variables: {A: [1]}\n",
        YML + "a: !!python/object/apply:os.getcwd []\n",
    ],
)
def test_wrong_environment_yml(text, tmp_path, snapshot):
    with pytest.raises(SpecificationError) as caught:
        read_specification(_write(tmp_path, "environment.yml", text))
    assert str(caught.value) == snapshot
    assert str(tmp_path / "environment.yml") in str(caught.value)


@pytest.mark.parametrize("line", ["-e .", "--editable=./src", "  -e git+https://example.org/x", "--editable ."])
def test_editable_packages_are_refused_before_anything_is_installed(line, tmp_path):
    for name, text in (
        ("requirements.txt", f"numpy\n{line}\n"),
        ("e.yml", f"dependencies: [python, {{pip: ['{line}']}}]\n"),
    ):
        with pytest.raises(UnpackableError, match="requests an editable package"):
            read_specification(_write(tmp_path, name, text))


def test_requirements(tmp_path):
    path = _write(tmp_path, "requirements.txt", "\ufeffnumpy\n# comment\n-e-is-no-option\n")
    assert read_specification(path) == WheelPackages(path, ("numpy", "# comment", "-e-is-no-option"))


@pytest.mark.parametrize(("build", "is_project"), [("", False), ('[build-system]\nrequires = ["hatchling"]\n', True)])
def test_pyproject(build, is_project, tmp_path):
    text = f'[project]\nname = "x"\nrequires-python = ">=3.11"\n{build}'
    path = _write(tmp_path, "pyproject.toml", text)
    assert read_specification(path) == WheelPackages(path, (), is_project, ">=3.11")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pyproject.toml", b"[project\n", "is not TOML"),
        ("pyproject.toml", b"[tool.ruff]\n", r"has no table \[project\]"),
        ("requirements.txt", b"# nothing\n\n", "lists no package"),
        ("requirements.txt", b"\xff\xfe\x00", "is not text in UTF-8"),
        ("setup.py", b"", "is of an unknown kind"),
        ("environment", b"", "is of an unknown kind"),
    ],
)
def test_wrong_files(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecificationError, match=message):
        read_specification(tmp_path / name)


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecificationError, match=r"does not exist: name an environment\.yml, a requirements\.txt"):
        read_specification(tmp_path / "none.yml")


def test_directories(tmp_path):
    for name in ("conda/conda-meta", "venv", "project", "empty"):
        (tmp_path / name).mkdir(parents=True)
    _write(tmp_path / "venv", "pyvenv.cfg", "home = /usr/bin\n")
    _write(tmp_path / "project", "requirements.txt", "numpy\n")
    assert read_specification(tmp_path / "conda") == CondaPrefix(tmp_path / "conda")
    assert read_specification(tmp_path / "venv") == VirtualEnvironment(tmp_path / "venv")
    with pytest.raises(SpecificationError, match=r"did you mean .*requirements.txt\?"):
        read_specification(tmp_path / "project")
    with pytest.raises(SpecificationError, match=r"without conda-meta and pyvenv\.cfg"):
        read_specification(tmp_path / "empty")


def test_lines_that_say_where_packages_come_from():
    lines = (
        "-i https://example.org",
        "numpy",
        "--find-links=./wheels",
        "-r x.txt",
        "  --no-index",
        "# --pre",
        "iniconfig",
    )
    assert index_options(lines) == ("-i https://example.org", "--find-links=./wheels", "  --no-index")


def test_a_lock_does_not_mind_comments_and_minds_packages(tmp_path):
    def of(text):
        return identity(read_specification(_write(tmp_path, "requirements.txt", text)), ())

    assert of("numpy\n") == of("# why\nnumpy\n\n")
    assert of("numpy\n") != of("numpy<2\n")
    first = identity(read_specification(_write(tmp_path, "e.yml", YML)), ())
    assert first == identity(read_specification(_write(tmp_path, "e.yml", "name: other\n" + YML)), ())
    assert first != identity(read_specification(_write(tmp_path, "e.yml", "channels: [x]\n" + YML)), ())


@pytest.mark.parametrize(
    "text", ["idna --hash=sha256:00\n", "idna>=3 \\\n    --hash=sha256:00\n"], ids=["open", "continued"]
)
def test_hashes_that_nothing_would_check(text, tmp_path):
    for name, content in (
        ("requirements.txt", text),
        ("e.yml", "dependencies: [python, {pip: ['idna --hash=sha256:0']}]"),
    ):
        with pytest.raises(SpecificationError, match=r"'idna.*' has a hash but no pinned version.*: pin it with =="):
            read_specification(_write(tmp_path, name, content))


def test_hashes_of_certain_versions(tmp_path):
    lines = ("idna==3.1 \\", "    --hash=sha256:00", "a @ file:///a.whl --hash=sha256:00", "# b --hash=sha256:00")
    assert read_specification(_write(tmp_path, "requirements.txt", "\n".join(lines))).requirements == lines
