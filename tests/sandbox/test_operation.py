"""What operators and authors see of the sandbox: levels, the floor, what is missing, what is refused, what is left
behind."""

import glob
import json
import os
import signal
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, arena, parameters, processes_of
from tests.support.gates import wait_until
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.log_lines import log_lines
from tests.support.served import served
from tests.support.server import free_of_processes, serving
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only a server that is root gives users away")


def write(repository: Path, name: str, **options: str) -> None:
    write_laboratory(repository, name, extra=parameters(**options))


class TestCrashes:
    @pytest.mark.parametrize("start", ["zygote", *thorough("own start")])
    def test_a_fatal_signal_shows_the_python_stack_at_every_level(self, tmp_path, start):
        levels = ("off", "standard", "strict")
        for level in levels:
            write(tmp_path, level, SANDBOX=level, ZYGOTE="yes" if start == "zygote" else "no")
        with serving(tmp_path) as server:
            for level in levels:
                lab = laboratory(server, level)
                lab("import ctypes\nos.close(1), os.close(2)\nctypes.string_at(0)")
                server.wait_for(f"Stub process '{level}_0_0' is not healthy. The process was killed by signal 11")
                said = [line.text for line in log_lines(server.output) if line.place.startswith(f"{level}_0_0/output:")]
                stack = said[said.index("Fatal Python error: Segmentation fault") :]
                assert any('File "<laboratory>", line 4 in run' in line for line in stack)
                assert any("in string_at" in line for line in stack)

    def test_a_crash_at_import_shows_the_stack_too(self, tmp_path):
        write(tmp_path, "early", SANDBOX="strict")
        path = tmp_path / "early/1/model.py"
        path.write_text("import os\n\ndef die():\n    os.abort()\n\ndie()\n" + path.read_text())
        with serving(tmp_path, flags=("--exit-on-error=false",), ready=False) as server:
            server.wait_for("Fatal Python error: Aborted")
            server.wait_for(r'early/1/model.py\\", line 4 in die')


BELOW_A_FLOOR = {
    "off": ({"SANDBOX": "off"}, "parameters SANDBOX is 'off', and this server has --sandbox-floor=strict"),
    "standard": (
        {"SANDBOX": "standard"},
        "parameters SANDBOX is 'standard', and this server has --sandbox-floor=strict",
    ),
    "network": ({"SANDBOX_NETWORK": "yes"}, "parameters SANDBOX_NETWORK would let it have more"),
    "read": ({"SANDBOX_READ": "/etc"}, "parameters SANDBOX_READ would let it have more"),
    "uid": ({"SANDBOX_UID": "host"}, "parameters SANDBOX_UID would let it have more"),
    "memory": ({"SANDBOX_MEMORY_MB": "99999999"}, "parameters SANDBOX_MEMORY_MB would let it have more"),
    "processes": ({"SANDBOX_PROCESSES": "99999999"}, "parameters SANDBOX_PROCESSES would let it have more"),
}
"""What models ask for, and why they are refused, by name."""


@served(flags=("--sandbox-floor=strict", "--exit-on-error=false"), ready=False)
def with_a_floor(repository):
    for name, (options, _) in BELOW_A_FLOOR.items():
        write(repository, name, **options)
    write(repository, "fine", SANDBOX_NETWORK="no", SANDBOX_MEMORY_MB="300", SANDBOX_PROCESSES="100")


class TestLevels:
    def test_a_model_says_its_own(self, tmp_path):
        write(tmp_path, "none")
        write(tmp_path, "own", SANDBOX="strict")
        write(tmp_path, "off", SANDBOX="off")
        with serving(tmp_path, flags=("--sandbox=standard",)) as server:
            levels = {name: server.get(f"/v2/models/{name}/sandbox").json for name in ("none", "own", "off")}
            assert {name: said["level"] for name, said in levels.items()} == {
                "none": "standard",
                "own": "strict",
                "off": "off",
            }
            for name, filters in (("none", 2), ("own", 2), ("off", 0)):
                (told,) = laboratory(server, name)(
                    "status = open('/proc/self/status').read()\n"
                    "return out(OUT=text(status.split('Seccomp:')[1].split()[0]))"
                )["OUT"]
                assert int(told) == filters
            counted = {name: value for name, value in server.metrics().items() if "sandbox_missing_layers" in name}
            assert len(counted) == 2
            for name, said in levels.items():
                if said["level"] != "off":
                    (value,) = [count for labels, count in counted.items() if f'model="{name}"' in labels]
                    assert value == len(said["not_in_force"])

    def test_unix_sockets_are_for_models_that_ask_where_the_operator_says_so(self, tmp_path):
        write(tmp_path, "usual")
        write(tmp_path, "asks", SANDBOX_UNIX_SOCKETS="yes")
        code = (
            "import socket\n"
            "try:\n    socket.socket(socket.AF_UNIX).close()\n"
            "except OSError as error:\n    return out(OUT=text(error.strerror))\n"
            "return out(OUT=text('may'))"
        )
        with serving(tmp_path, flags=("--allow-unix-sockets=false",)) as server:
            told = {name: laboratory(server, name)(code)["OUT"][0] for name in ("usual", "asks")}
        assert told == {"usual": b"Permission denied", "asks": b"may"}

    @pytest.mark.parametrize("name", BELOW_A_FLOOR)
    def test_no_model_goes_below_the_floor(self, with_a_floor, name):
        assert BELOW_A_FLOOR[name][1] in with_a_floor.wait_for(rf'"{name} +\| 1 \| (UNAVAILABLE.*)"')[1]

    def test_a_model_at_the_floor_is_served(self, with_a_floor):
        with_a_floor.wait_until("/v2/models/fine/ready", 200)
        assert with_a_floor.get("/v2/models/fine/sandbox").json["level"] == "strict"

    def test_the_models_own_code_has_no_say(self, tmp_path):
        write(tmp_path, "sly", SANDBOX="strict")
        path = tmp_path / "sly" / "1" / "model.py"
        path.write_text(
            path.read_text().replace(
                "class TritonPythonModel:\n",
                "class TritonPythonModel:\n"
                "    @staticmethod\n"
                "    def auto_complete_config(config):\n"
                "        document = config.as_dict()\n"
                "        chosen = dict(SANDBOX='off', SANDBOX_MODEL_CONTROL='sly', PROCESS_GROUP='g', ZYGOTE='no',\n"
                "                      EXECUTION_ENV_PATH='/nowhere')\n"
                "        document['parameters'] = {key: {'string_value': value} for key, value in chosen.items()}\n"
                "        document['instance_group'] = [{'name': 'more', 'count': 2, 'kind': 'KIND_CPU'}]\n"
                "        config.add_input(dict(name='MORE', data_type='TYPE_FP32', dims=[1], optional=True))\n"
                "        return config\n",
            )
        )
        with serving(tmp_path) as server:
            assert server.get("/v2/models/sly/sandbox").json["level"] == "strict"
            config = server.get("/v2/models/sly/config").json
            assert "MORE" in [each["name"] for each in config["input"]]  # what it may complete, it has completed
            assert config["parameters"] == {"SANDBOX": {"string_value": "strict"}}
            assert [group["name"] for group in config["instance_group"]] == ["sly_0"]
            answer = laboratory(server, "sly")("import socket; socket.socket(); return out(OUT=text('open'))")
            assert "PermissionError" in answer.error


def test_what_is_required_and_missing_keeps_a_model_from_being_loaded(tmp_path):
    """Under /tmp models of others cannot be hidden."""
    write(tmp_path, "model", SANDBOX="standard")
    if "neighbours" not in _missing(tmp_path):
        pytest.skip("temporary files do not lie below /tmp here")
    flags = ("--sandbox-required", "--exit-on-error=false")
    with serving(tmp_path, flags=flags, ready=False) as server:
        reason = server.wait_for(r'"model +\| 1 \| (UNAVAILABLE.*)"')[1]
        assert "neighbours: models may write where" in reason


def _missing(repository: Path) -> dict[str, str]:
    with serving(repository) as server:
        return server.get("/v2/models/model/sandbox").json["not_in_force"]


REFUSED = {
    "file": ("open('/etc/passwd')", "SANDBOX_READ"),
    "program": ("import subprocess; subprocess.run(['/bin/true'])", "SANDBOX_SUBPROCESSES"),
    "fork": ("def fork():\n    os.fork()\nfork()", "SANDBOX_SUBPROCESSES"),
    "network": ("import socket; socket.create_connection(('127.0.0.1', 1))", "SANDBOX_NETWORK"),
    "memory": ("bytearray(1 << 40)", "SANDBOX_MEMORY_MB"),
    "shared_memory": (
        "from multiprocessing import shared_memory as m; m.SharedMemory(create=True, size=1)",
        "SANDBOX_SUBPROCESSES",
    ),
    "signal": ("def kill():\n    os.kill(os.getppid(), 0)\nkill()", "only processes that it started"),
}
"""What strict models try, each with what the log names."""


@served()
def strict_models(repository):
    for name in REFUSED:
        write(repository, name, SANDBOX="strict")


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_option_once(strict_models, name):
    code, option = REFUSED[name]
    for _ in range(2):
        assert laboratory(strict_models, name)(code).status == 500
    line = strict_models.wait_for(rf"W.*sandbox of '{name}_0[^']*': .*{option}.*")[0]
    assert "model's parameters" in line
    laboratory(strict_models, name)("return out(OUT=text('x'))")
    assert strict_models.output.count(f"sandbox of '{name}_0") == 1


def test_a_path_that_is_not_there_is_named_or_created(tmp_path):
    made = tmp_path / "shelf" / "kept"
    (tmp_path / "link").symlink_to(tmp_path)
    written = f"{tmp_path}:{made}/:{tmp_path}/link/other"
    rights = {"SANDBOX_READ": f"{tmp_path}/wieghts", "SANDBOX_WRITE": written, "SANDBOX_UID": "host"}
    write(tmp_path / "models", "model", **rights)
    with serving(tmp_path / "models") as server:
        server.wait_for(rf"W.*model 'model': SANDBOX_READ names {tmp_path}/wieghts, which does not exist")
        server.wait_for(
            rf"W.*model 'model': SANDBOX_WRITE names {tmp_path}/link/other, which does not exist and cannot be"
        )
        assert server.output.count("which does not exist") == 2
        assert made.stat().st_mode == tmp_path.stat().st_mode
    assert not (tmp_path / "other").exists()


def test_directories_that_were_made_for_libraries_go_if_they_are_empty(tmp_path):
    write(tmp_path / "models", "model", SANDBOX_UID="host")
    chosen = {"HF_HOME": str(tmp_path / "shared/huggingface"), "TORCH_HOME": str(tmp_path / "torch")}
    environment = {**os.environ, **chosen, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with serving(tmp_path / "models", env=environment) as server:
        laboratory(server, "model")(
            "path = os.environ['HF_HOME'] + '/hub'; os.makedirs(path)\n"
            "open(os.path.join(path, 'weights'), 'w').close(); return out(OUT=text(path))"
        )
        assert (tmp_path / "torch").is_dir()
        assert server.stop() == 0
    assert not (tmp_path / "torch").exists()
    assert (tmp_path / "shared/huggingface/hub/weights").exists()


class TestUsers:
    """A root server whose models have users of their own."""

    pytestmark = needs_root

    def test_nothing_of_a_model_outlives_it(self):
        with arena("root", models={"victim": {"SANDBOX": "standard"}}) as host:
            host.server.wait_ready()
            said = host.ask("victim")
            uid = said["uid"]
            assert uid > 60_000
            rooms = rooms_of(uid)
            assert len(rooms) == 1
            host.context["honest"] = True
            assert host.ask("victim", ["leaves_processes_behind"])["results"] == {"leaves_processes_behind": ""}
            left = processes_of(uid)
            assert len(left) >= 2
            assert host.server.stop() == 0
            assert free_of_processes(left)
            assert not [room for room in rooms if room.exists()]

    @pytest.mark.thorough
    def test_what_a_dead_process_has_started_is_gone_before_the_next_one_comes(self):
        with arena("root", models={"victim": {"SANDBOX": "standard"}}) as host:
            host.server.wait_ready()
            said = host.ask("victim")
            host.context["honest"] = True
            host.ask("victim", ["leaves_processes_behind"])
            left = processes_of(said["uid"])
            assert len(left) >= 3
            os.kill(said["pid"], signal.SIGKILL)
            host.server.wait_for("is restarted")
            assert free_of_processes(left)
            assert host.ask("victim")["uid"] == said["uid"]

    def test_the_next_server_clears_up_after_one_that_was_killed(self):
        with arena("root", models={"victim": {"SANDBOX": "standard"}}) as host:
            host.server.wait_ready()
            uid = host.ask("victim")["uid"]
            (left,) = rooms_of(uid)
            host.server.stop(signal.SIGKILL)
            assert left.exists()
        with arena("root", models={"victim": {"SANDBOX": "standard"}}) as host:
            host.server.wait_ready()
            wait_until(lambda: not left.exists(), "the directory of a dead server is still there")

    @pytest.mark.thorough
    def test_a_user_without_a_name_has_one_for_libraries(self, monkeypatch):
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(name, raising=False)
        with arena("root", models={"victim": {"SANDBOX": "standard"}}) as host:
            host.server.wait_ready()
            host.context["honest"] = True
            assert host.ask("victim", ["knows_its_user"])["results"] == {"knows_its_user": ""}

    @pytest.mark.thorough
    def test_a_user_of_the_operators_choice(self):
        with arena("root", models={"victim": {"SANDBOX": "standard", "SANDBOX_UID": "54322"}}) as host:
            host.server.wait_ready()
            assert host.ask("victim")["uid"] == 54322


def rooms_of(uid: int) -> list[Path]:
    """Private directories of a user; those of other servers come and go meanwhile."""
    found = []
    for path in glob.glob("/run/pybackend/*/*"):
        try:
            if os.stat(path).st_uid == uid:
                found.append(Path(path))
        except FileNotFoundError:
            continue
    return found


def test_a_secret_of_the_server_does_not_reach_a_strict_model(tmp_path):
    write(tmp_path, "model", SANDBOX="strict")
    with serving(tmp_path, env={**os.environ, "SERVER_SECRET": "to be kept", "OMP_NUM_THREADS": "1"}) as server:
        (told,) = laboratory(server, "model")("return out(OUT=text(json.dumps(dict(os.environ))))")["OUT"]
        variables = json.loads(told)
        assert "SERVER_SECRET" not in variables
        assert variables["OMP_NUM_THREADS"] == "1"
        assert variables["HOME"] == variables["TMPDIR"]


@pytest.mark.skipif(not IS_ROOT, reason="only root can start a server of somebody else")
@pytest.mark.thorough
def test_a_version_that_the_server_may_not_enter_is_not_loaded_and_the_others_serve():
    with arena("user", "--exit-on-error=false", models={"victim": {}, "closed": {}}, closed=["closed/1"]) as host:
        reason = host.server.wait_for(r'"closed +\| 1 \| (UNAVAILABLE.*)"')[1]
        assert "cannot access " in reason
        assert ": Permission denied. The server's user must be able to enter" in reason
        assert host.ask("victim")["pid"]
