"""What packages of an environment set when it is activated: GDAL_DATA, JAVA_HOME and their like."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environments import copy_of, pack
from tests.support.gates import wait_until
from tests.support.server import serving
from tests.support.thorough import thorough

pytestmark = pytest.mark.timeout(180)

DEADLINE_S = 90
_NUMBERS = itertools.count(1)
GEO = """
export GEO_DATA="$CONDA_PREFIX/share/geo" GEO_GRIDS="$(basename /usr/lib/grids)"
export PATH="$CONDA_PREFIX/libexec:$PATH"
[ -n "$GEO_TRACE" ] && export GEO_LOG=all
"""


@pytest.fixture
def environment(tmp_path):
    """Makes a directory with an interpreter, numpy and hooks."""

    def environment(**hooks):
        prefix = copy_of(None, tmp_path / "environment")
        directory = prefix / "etc" / "conda" / "activate.d"
        directory.mkdir(parents=True)
        for name, text in hooks.items():
            (directory / f"{name}.sh").write_text(text)
        return prefix

    return environment


@pytest.fixture
def many():
    """So many seconds that nobody else sleeps as long: how a test knows its own processes."""
    return f"8{os.getpid()}{next(_NUMBERS):03}"


def level(name):
    return f'parameters {{ key: "SANDBOX" value {{ string_value: "{name}" }} }}'


def running(argument):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argument.encode() in arguments:
                found.append(int(entry.name))
    return found


@pytest.mark.spec("pb-V01")
@pytest.mark.thorough
def test_every_process_in_a_directory_has_what_its_hooks_set(tmp_path, environment, about, write_about, cache):
    prefix = environment(geo=GEO)
    for name in ("off", "standard", "strict"):
        write_about(tmp_path / "models", prefix, name, level(name))
    write_about(tmp_path / "models", prefix, "spawned", 'parameters { key: "ZYGOTE" value { string_value: "no" } }')
    write_about(tmp_path / "models", None, "without")
    flags = (cache, "--sandbox=standard")
    with serving(tmp_path / "models", flags=flags) as server:
        environs = {name: about(server, name)["environ"] for name in ("off", "standard", "spawned")}
        for environ in environs.values():
            assert environ["GEO_DATA"] == f"{prefix}/share/geo"
            assert environ["GEO_GRIDS"] == "grids"
            assert "GEO_LOG" not in environ
            assert environ["PATH"].startswith(f"{prefix}/libexec:{prefix}/bin:")
        assert "GEO_DATA" not in about(server, "without")["environ"]
        assert server.output.count(f"Activation hooks of {prefix} set GEO_DATA, GEO_GRIDS, PATH") == 1
        assert "Activation hook /" not in server.output


@pytest.mark.around("pybackend_tools")
def test_a_command_in_a_directory_has_what_its_hooks_set(environment):
    code = "import os; print(os.environ['GEO_DATA'])"
    command = [sys.executable, "-m", "pybackend", "env", "run", environment(geo=GEO), "--", "python", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.stdout.endswith("environment/share/geo\n"), done.stderr


@pytest.mark.around("pybackend_tools")
def test_they_are_run_once_for_an_archive_and_shown(tmp_path, environment, about, write_about):
    archive = pack(environment(geo=GEO), tmp_path / "env.tar")
    directory = tmp_path / "cache" / "environments"
    flag = f"--environment-cache-directory={tmp_path / 'cache'}"
    write_about(tmp_path / "models", archive)

    def inspected():
        command = [sys.executable, "-m", "pybackend", "env", "inspect", str(archive), flag]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "hooks          geo.sh; they set: unknown until a server has run them" in inspected()
    for times in (1, 0):
        with serving(tmp_path / "models", flags=(flag,)) as server:
            (prefix,) = (path for path in directory.iterdir() if path.is_dir())
            assert about(server)["environ"]["GEO_DATA"] == f"{prefix}/share/geo"
            assert server.output.count("Activation hooks of") == times
    assert "hooks          geo.sh; they set: GEO_DATA, GEO_GRIDS, PATH" in inspected()
    subprocess.run([sys.executable, "-m", "pybackend", "env", "prune", flag], capture_output=True, check=True)
    assert os.listdir(directory) == []


WRONG = {
    "exit": ("exit 7", "ended the shell with status 7"),
    "syntax": ("if (", r"(returned|ended the shell with status) 2: .*syntax error"),
    "signal": ("kill -9 $$", "was killed by signal 9"),
    "garbage": ("head -c 300000 /dev/urandom; head -c 1000 /dev/urandom >&2; exit 1", "ended the shell with status 1"),
    "daemon": ("setsid sleep MANY &", r"left processes behind \(1\); they were killed"),
}


@pytest.mark.faults
@pytest.mark.thorough
def test_a_hook_that_goes_wrong_is_named_and_keeps_no_model_from_loading(
    tmp_path, environment, about, write_about, cache, many
):
    prefix = environment()
    directory = prefix / "etc" / "conda" / "activate.d"
    for kind, (text, _) in WRONG.items():
        own = tmp_path / kind
        shutil.copytree(prefix, own, symlinks=True, copy_function=os.link)
        place = own / directory.relative_to(prefix)
        (place / "a_good.sh").write_text("export GOOD=1\n")
        (place / "b_wrong.sh").write_text(text.replace("MANY", many) + "\n")
        write_about(tmp_path / "models", own, kind)
    with serving(tmp_path / "models", flags=(cache,)) as server:
        for kind, (_, expected) in WRONG.items():
            assert about(server, kind)["environ"]["GOOD"] == "1"
            place = tmp_path / kind / directory.relative_to(prefix)
            named = f"one of {place}/*.sh" if kind == "daemon" else f"{place}/b_wrong.sh"
            server.wait_for(f"Activation hook {named.replace('*', '[*]')} {expected}")
        assert server.output.count("Activation hook /") + server.output.count("Activation hook one") == len(WRONG)
    assert running(many) == []


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, *thorough(signal.SIGTERM)], ids=["killed", "told"])
def test_nothing_of_a_hook_outlives_the_server(number, tmp_path, environment, write_about, cache, many):
    write_about(tmp_path / "models", environment(slow=f"setsid sleep {many} &\nsleep {many}\n"))
    with serving(tmp_path / "models", flags=(cache,), ready=False) as server:
        wait_until(lambda: len(running(many)) == 2, "the hook does not run", DEADLINE_S)
        assert server.stop(number) == (0 if number is signal.SIGTERM else -number)
    wait_until(lambda: not running(many), lambda: f"left behind: {running(many)}")


def test_what_lists_of_packages_set_costs_no_process(tmp_path, environment, about, write_about, cache):
    """``pybackend pack`` repeats the author's variables as a hook, and says so in the manifest."""
    from pybackend.environment.hooks import VARIABLES_HOOK
    from pybackend.environment.manifest import EnvironmentManifest, host_platform
    from tests.support.environments import foreign_minors

    prefix = environment(**{VARIABLES_HOOK.removesuffix(".sh"): "export COLOUR=red\n"})
    EnvironmentManifest(host_platform(), f"3.{foreign_minors()[0]}", variables={"COLOUR": "red"}).write(prefix)
    write_about(tmp_path / "models", prefix)
    with serving(tmp_path / "models", flags=(cache,)) as server:
        assert about(server)["environ"]["COLOUR"] == "red"
        assert "ctivation hook" not in server.output
    assert json.loads((prefix / "pybackend-environment.json").read_text())["variables"] == {"COLOUR": "red"}
