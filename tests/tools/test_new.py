"""``pybackend new``: what each template writes loads, answers its client, passes its tests, and is well formatted."""

import os
import subprocess
import sys

import pytest

from pybackend.cli.command_parser import UsageError
from pybackend.errors import ServerError
from pybackend_tools.terminal.new_command import TEMPLATES, run_new
from tests.support.server import ServerProcess

ANSWERS = {
    "plain": "Y: [2.0, 4.0, 6.0]",
    "text": "A great film! positive (0.92)\nI was bored: awful. negative (0.92)",
    "image": "red (0.96)",
    "decoupled": "WORD: once\nWORD: upon\nWORD: a\nWORD: time",
    "bls": "Y: [200.0]",
    "sequence": "TOTAL: 3.0\nTOTAL: 7.0\nTOTAL: 12.0",
    "ensemble": "COUNT: 3",
}

DEADLINE_S = 60


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A directory with a model from each template."""
    directory = tmp_path_factory.mktemp("new") / "models"
    for template in TEMPLATES:
        assert run_new([f"a-{template}.1", str(directory), f"--template={template}"]) == 0
    return directory


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **options,
    )


def test_models_load_and_answer_their_clients(written):
    assert set(ANSWERS) == set(TEMPLATES)
    server = ServerProcess([written], command="dev")
    try:
        server.wait_for(r"10 of 10 models are ready")
        for template, answer in ANSWERS.items():
            done = run(written / f"client_a_{template}_1.py", f"http://{server.url}")
            assert (done.stderr, done.stdout.strip(), done.returncode) == ("", answer, 0), template
    finally:
        server.stop()


def test_clients_without_a_server_end_with_a_sentence(written):
    for client in written.glob("client_*.py"):
        done = run(client, "http://127.0.0.1:1")
        assert done.returncode == 1
        assert done.stderr.startswith("no server answers at http://127.0.0.1:1: ")
        assert len(done.stderr.splitlines()) == 1


def test_models_refuse_outputs_that_are_not_as_configured(written):
    texts = [path.read_text() for path in written.glob("*/config.pbtxt")]
    validating = 'parameters { key: "VALIDATE_OUTPUTS" value: { string_value: "yes" } }'
    assert [text for text in texts if validating not in text and 'platform: "ensemble"' not in text] == []


@pytest.mark.thorough
def test_tests_pass(written):
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", written, cwd=written, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(written.glob("test_*.py"))) == len(TEMPLATES)


def test_code_and_configurations_are_clean(written, pybackend):
    for arguments in (("format", "--check"), ("check", "--select=E,F,I,UP,B,ANN,RUF")):
        done = run("-m", "ruff", *arguments, "--isolated", "--no-cache", written)
        assert done.returncode == 0, done.stdout
    done = pybackend("check", "--strict", str(written))
    assert done.stdout.endswith("10 models, 0 errors, 0 warnings\n"), done.stdout


def test_the_directory_is_named_after_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_new(["scale"]) == 0
    told = capsys.readouterr().out
    paths = sorted(str(path) for path in (tmp_path / "scale").rglob("*") if path.is_file())
    names = ("client_scale.py", "scale/1/model.py", "scale/config.pbtxt", "test_scale.py")
    assert paths == [f"{tmp_path}/scale/{name}" for name in names]
    assert "wrote scale/scale/1/model.py\n" in told
    assert "\npybackend dev scale " in told
    assert "\npytest scale " in told
    before = (tmp_path / "scale/test_scale.py").read_text()
    with pytest.raises(
        ServerError, match=r"scale/client_scale.py exists already, and nothing was written: choose another"
    ):
        run_new(["scale", "--template=bls"])
    assert not (tmp_path / "scale/scale_scale").exists()
    assert (tmp_path / "scale/test_scale.py").read_text() == before


def test_tests_do_not_depend_on_the_settings_of_a_clone(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "pybackend"\n[tool.pytest.ini_options]\naddopts = ["--strict-config"]\nno_such_option = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    for name in ("scale", "other"):
        assert run_new([name, "scale"]) == 0
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "scale", cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_there_is_installed_first(tmp_path):
    code = "import sys; sys.modules['pytest'] = sys.modules['PIL'] = None; from pybackend.cli import main; sys.exit(main())"
    done = run("-c", code, "new", "look", "--template=image", cwd=tmp_path)
    assert "\npython -m pip install pytest && pytest look " in done.stdout, done
    assert "\npython -m pip install pillow && pybackend dev look " in done.stdout, done


@pytest.mark.parametrize(
    "name", ["", " ", "..", "a/b", ".hidden", "__pycache__", "lost+found", "é", "a b", "a" * 101, '"']
)
def test_names_that_no_model_can_have(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"(?i)model name"):
        run_new([name])
    assert list(tmp_path.iterdir()) == []
