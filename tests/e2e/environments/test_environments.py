"""Models in environments of their own: real interpreters of this machine, packed, served and asked."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.floor.environments import Row, Unavailable, python_of
from tests.support.environments import copy_of, foreign_minors, linked, pack, packed, tree
from tests.support.inference import infer
from tests.support.repositories import IDENTITY, PREAMBLE, identity_config, write_model
from tests.support.server import serving
from tests.support.thorough import thorough

pytestmark = pytest.mark.timeout(180)

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
UNPACKED = "Unpacked /"


@pytest.fixture(scope="session")
def archive():
    """A packed environment of another Python than the host's."""
    return packed()


@pytest.mark.spec("pb-V01")
@pytest.mark.parametrize("suffix", [".tar.zst", *thorough(".tar", ".tar.gz")])
def test_a_packed_environment(suffix, tmp_path, about, write_about, cache):
    archive = packed(suffix=suffix)
    write_about(tmp_path, archive)
    with serving(tmp_path, flags=(cache,)) as server:
        facts = about(server)
        server.wait_for(f"Using Python execution env {archive}")
        server.wait_for(r"model 'm' runs on Python 3\.\d+[\d.]*, numpy \d")
        told = server.get("/v2/models/m/environment").json
    prefix = Path(facts["prefix"])
    assert facts["version"] == [3, foreign_minors()[0]]
    assert (told["path"], told["python"]) == (str(archive), f"3.{foreign_minors()[0]}")
    assert prefix.parent == Path(cache.partition("=")[2]) / "environments"
    assert Path(facts["numpy"]).is_relative_to(prefix)
    assert facts["tool"] == "a tool"
    expected = {"VIRTUAL_ENV": str(prefix), "VIRTUAL_ENV_PROMPT": f"({prefix})"}
    assert {name: facts["environ"].get(name) for name in expected} == expected
    assert facts["environ"]["PATH"].startswith(f"{prefix}/bin{os.pathsep}")


@pytest.mark.spec("pb-V01")
def test_ways_to_name_it(tmp_path, about, write_about, cache, archive):
    """The model's directory, at the start and elsewhere, the working directory, a link, an absolute path, a directory."""
    repository, work = tmp_path / "models", tmp_path / "work"
    work.mkdir()
    own = write_about(repository, "$$TRITON_MODEL_DIRECTORY/env.tar.gz", "own")
    linked(archive, own / "env.tar.gz")
    linked(archive, work / "relative.tar.gz")
    (work / "link").symlink_to(archive)
    write_about(repository, "relative.tar.gz", "relative")
    write_about(repository, work / "link", "link")
    write_about(repository, archive, "absolute")
    write_about(repository, "/..$$TRITON_MODEL_DIRECTORY/../own/env.tar.gz", "inside")
    write_about(repository, "$$TRITON_MODEL_DIRECTORY/../own/env.tar.gz", "beside")
    names = ("own", "relative", "link", "absolute", "inside", "beside")
    with serving(repository, flags=(cache,), cwd=work) as server:
        prefixes = {about(server, name)["prefix"] for name in names}
        assert server.output.count(UNPACKED) <= 1, "one content is one environment"
    assert len(prefixes) == 1


@pytest.mark.spec("pb-V01")
def test_a_directory_is_used_in_place(tmp_path, about, write_about, cache):
    model = write_about(tmp_path / "models", "$$TRITON_MODEL_DIRECTORY/env")
    copy_of(None, model / "env")
    with serving(tmp_path / "models", flags=(cache,)) as server:
        facts = about(server)
        assert UNPACKED not in server.output
    assert facts["prefix"] == str(model / "env")
    assert facts["version"] == [3, foreign_minors()[0]]


@pytest.mark.thorough
@pytest.mark.spec("pb-V01")
def test_an_environment_is_shared_and_cached(tmp_path, about, write_about):
    repository, flag = tmp_path / "models", f"--environment-cache-directory={tmp_path / 'cache'}"
    for name in ("one", "two", "three"):
        write_about(repository, packed(), name)
    for unpacked in (1, 0):
        with serving(repository, flags=(flag,)) as server:
            assert len({about(server, name)["prefix"] for name in ("one", "two", "three")}) == 1
            assert server.output.count(UNPACKED) == unpacked


@pytest.mark.spec("pb-V06")
def test_a_virtual_environment(tmp_path, about, write_about, cache):
    """Its interpreter lies elsewhere: it is used in place, as a directory."""
    try:
        venv = Path(
            python_of(Row(foreign_minors()[0] if foreign_minors() else sys.version_info.minor, 1, msgpack=False))
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    write_about(tmp_path, venv.parents[1])
    with serving(tmp_path, flags=(cache,)) as server:
        assert about(server)["prefix"] == str(venv.parents[1])


@pytest.mark.thorough
@pytest.mark.spec("pb-V01")
def test_models_of_several_pythons_in_one_ensemble(tmp_path, about, write_about, cache):
    """Two foreign Pythons and the host's own."""
    minors = foreign_minors()
    if len(minors) < 2:
        pytest.skip("this machine has no two CPythons beside the host's that could be packed")
    version = """
import sys

class TritonPythonModel:
    def execute(self, requests):
        seen = np.array([sys.version_info[1]], np.float32)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.append(request.inputs()[0].as_numpy(), seen).astype(np.float32))]
            )
            for request in requests
        ]
"""
    steps = []
    for number, minor in enumerate((minors[0], None, minors[-1])):
        extra = "" if minor is None else (
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: '
            f'"{packed(minor, numpy_major=1 if minor < 12 else 2)}" }} }}'
        )  # fmt: skip
        write_model(tmp_path, f"part{number}", version, identity_config(extra=extra))
        names = ("IN" if number == 0 else f"t{number}", "OUT" if number == 2 else f"t{number + 1}")
        steps.append(
            f'{{ model_name: "part{number}" model_version: -1 input_map {{ key: "IN" value: "{names[0]}" }} '
            f'output_map {{ key: "OUT" value: "{names[1]}" }} }}'
        )
    config = identity_config(extra=f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}")
    write_model(tmp_path, "all", None, config.replace('backend: "python"', 'platform: "ensemble"'))
    with serving(tmp_path, flags=(cache,)) as server:
        answer = infer(server, "all", {"IN": np.zeros(1, np.float32)})["OUT"]
    assert answer.tolist() == [0, minors[0], sys.version_info.minor, minors[-1]]


@pytest.mark.spec("pb-L09")
@pytest.mark.thorough
def test_libraries_of_the_host_do_not_reach_it(tmp_path, about, write_about, cache, archive):
    write_about(tmp_path, archive)
    write_about(tmp_path, None, "hosts")
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": "/opt/of/the/host",
        "PYTHONPATH": str(Path(__file__).parent),
        "COLOUR": "red",
    }
    environ["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    with serving(tmp_path, flags=(cache,), env=environ) as server:
        own, hosts = about(server), about(server, "hosts")
    # Its own are passed on only where its Python could not be started again without.
    assert own["environ"].get("LD_LIBRARY_PATH") in {None, f"{own['prefix']}/lib"}
    assert "PYBACKEND_LIBRARY_PATH" not in own["environ"]
    assert hosts["environ"]["LD_LIBRARY_PATH"] == "/opt/of/the/host"
    assert not {name for name in own["environ"] if name.startswith("PYTHON")}
    assert (own["environ"]["COLOUR"], hosts["environ"]["COLOUR"]) == ("red", "red")


@pytest.mark.thorough
@pytest.mark.faults
def test_an_instance_that_is_restarted_keeps_its_environment(tmp_path, about, write_about, archive):
    """Even if the archive is gone by then."""
    mine = tmp_path / "env.tar.gz"
    linked(archive, mine)
    write_about(tmp_path / "models", mine)
    with serving(tmp_path / "models", flags=(f"--environment-cache-directory={tmp_path / 'cache'}",)) as server:
        before = about(server)
        mine.unlink()
        os.kill(before["pid"], signal.SIGKILL)
        server.wait_for(r"instance 'm_\S+' is restarted")
        server.wait_until("/v2/models/m/ready", 200)
        after = about(server)
    assert after["pid"] != before["pid"]
    assert after["prefix"] == before["prefix"]


BACKEND = (
    PREAMBLE
    + """
import json, sys
class TritonPythonModel:
    def execute(self, requests):
        facts = np.array([json.dumps([sys.prefix, pb_utils.get_model_dir()])], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", facts)]) for _ in requests]
"""
)


@pytest.mark.spec("pb-K02")
@pytest.mark.thorough
def test_a_backend_brings_an_environment_for_models_that_name_none(tmp_path, cache, archive):
    backends, repository = tmp_path / "backends", tmp_path / "models"
    for backend, runtime in (("packed", "model.py"), ("other", "serve.py")):
        (backends / backend).mkdir(parents=True)
        (backends / backend / "model.py").write_text(BACKEND)
        (backends / backend / "serve.py").write_text(BACKEND)
        linked(archive, backends / backend / f"pb_exec_env_{runtime}.tar.gz")
    tensor = identity_config("TYPE_STRING", "[ 1 ]")
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{tree()}" }} }}'
    write_model(repository, "default", None, tensor.replace("python", "packed"))
    write_model(repository, "named", None, tensor.replace("python", "packed") + own)
    write_model(repository, "hosts", None, tensor.replace("python", "other"))  # its environment belongs to another file
    write_model(repository, "runtime", None, tensor.replace("python", "other") + 'runtime: "serve.py"')
    write_model(repository, "plain", IDENTITY, identity_config())
    with serving(repository, flags=(cache, f"--backend-directory={backends}")) as server:
        found = {}
        for name in ("default", "named", "hosts", "runtime"):
            answer = infer(server, name, {"IN": np.array([b""], object)})["OUT"]
            prefix, directory = json.loads(answer.item())
            assert directory == str(repository / name / "1")
            found[name] = prefix
    assert found["default"] == found["runtime"] != sys.prefix
    assert Path(found["default"]).is_relative_to(cache.partition("=")[2])
    assert (found["named"], found["hosts"]) == (str(tree()), sys.prefix)


@pytest.mark.spec("pb-V02")
@pytest.mark.faults
@pytest.mark.thorough
def test_an_archive_that_is_replaced_serves_from_the_next_load_on(tmp_path, about, write_about):
    """The new one is unpacked beside the old, which models use until they are loaded again."""
    from tests.support.laboratory import laboratory, write_laboratory

    repository, mine = tmp_path / "models", tmp_path / "env.tar"
    changed = copy_of(None, tmp_path / "changed")
    (changed / "bin" / "tool").unlink()
    (changed / "bin" / "tool").write_text("#!/usr/bin/env python\nprint('another tool')\n")
    (changed / "bin" / "tool").chmod(0o755)
    shutil.copy(packed(suffix=".tar"), mine)
    write_about(repository, mine)
    write_laboratory(repository)
    flags = (f"--environment-cache-directory={tmp_path / 'cache'}", *EXPLICIT)
    with serving(repository, flags=flags) as server:
        load = laboratory(server)
        first = about(server)
        mine.touch()
        load('pb_utils.load_model("m")')
        touched = about(server)
        assert server.output.count(UNPACKED) == 1
        pack(changed, tmp_path / "new.tar").replace(mine)
        replaced = about(server)
        load('pb_utils.load_model("m")')
        loaded = about(server)
        assert server.output.count(UNPACKED) == 2
    assert [facts["tool"] for facts in (first, touched, replaced, loaded)] == ["a tool"] * 3 + ["another tool"]
    assert first["prefix"] == touched["prefix"] != loaded["prefix"]
    assert first["pid"] != touched["pid"] == replaced["pid"] != loaded["pid"]
