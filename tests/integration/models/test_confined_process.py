"""What confines a process reaches it before any code of a model, and its report reaches the host."""

import asyncio

import pytest

from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.errors import ModelLoadError
from pybackend.instance.session import StubSession
from pybackend.instance.settings import StubSettings
from pybackend.ipc import stub_messages as heard
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.process.stub_process import StubLaunch
from pybackend.sandbox.model_sandbox import InstanceSandbox, ModelSandbox, ReachableFiles
from pybackend.sandbox.options import SandboxOptions
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import SandboxSettings
from pybackend_wire.confinement import LAYERS, STANDARD, Confinement
from pybackend_wire.host_messages import ModelToLoad
from tests.support.descriptors import open_descriptors
from tests.support.engine import services_without_models

ANYWHERE = [("/", "rwx")]


NOTHING = {"limits": {}, "variables": {}, "missing": {}}


def unexpected(*message):
    """The session's stub runs no model: it says and asks nothing."""
    raise AssertionError(message)


HANDLERS = {heard.Result: unexpected}


def sandbox(directory, confinement):
    """The sandbox of an instance whose processes are confined so."""
    files = ReachableFiles(directory, directory, directory / "model.py", HOST_ENVIRONMENT)
    server = Sandbox(SandboxSettings(), [], stage_bundle())
    return InstanceSandbox(
        ModelSandbox(server, "m", STANDARD, SandboxOptions(), files), confinement, None, exclusive=False
    )


def loaded(tmp_path, confinement):
    """A session that has loaded a model in a process so confined; the text that it has left behind."""
    model = tmp_path / "model.py"
    model.write_text(
        "import os\n"
        f"with open({str(tmp_path / 'said')!r}, 'w') as said:\n"
        "    said.write(os.environ.get('PYBACKEND_TEST', 'nothing'))\n"
        "class TritonPythonModel: pass\n"
    )

    async def scenario():
        launcher = StubLauncher(stage_bundle())
        launch = StubLaunch(sandbox=None if confinement is None else sandbox(tmp_path, confinement))
        process = await launcher.start(launch)
        settings = StubSettings(launch, ModelToLoad(str(model), "m", "m_0", str(tmp_path)), 1 << 20)
        services = services_without_models(launcher)
        session = StubSession(process, settings, None, unexpected, lambda *_: None, HANDLERS, unexpected, services)
        try:
            async with asyncio.timeout(60):
                await session.load(None)
        finally:
            session.kill()
            await session.finalize()
            launcher.close()
        return session

    return asyncio.run(scenario())


def test_a_process_says_what_confines_it(tmp_path):
    confinement = Confinement(STANDARD, paths=ANYWHERE, **{**NOTHING, "variables": {"PYBACKEND_TEST": "hello"}})
    session = loaded(tmp_path, confinement)
    assert set(session.confined) == set(LAYERS)
    assert session.confined["no_new_privileges"] == ""
    assert session.confined["descriptors"] == ""
    assert (tmp_path / "said").read_text() == "hello"


def test_a_process_that_nobody_confines_has_nothing_to_say(tmp_path):
    assert loaded(tmp_path, None).confined == {}
    assert (tmp_path / "said").read_text() == "nothing"


def test_a_process_that_cannot_be_confined_as_it_must_runs_no_model(tmp_path):
    confinement = Confinement(
        STANDARD, paths=ANYWHERE, required=["uid"], **{**NOTHING, "missing": {"uid": "for a test"}}
    )
    with pytest.raises(ModelLoadError, match="uid: for a test"):
        loaded(tmp_path, confinement)
    assert not (tmp_path / "said").exists()


def test_what_it_may_do_may_be_long(tmp_path):
    paths = [*ANYWHERE, *((f"/nowhere/{'x' * 100}/{number}", "r") for number in range(2000))]
    assert loaded(tmp_path, Confinement(STANDARD, paths=paths, **NOTHING)).confined["descriptors"] == ""


def test_nothing_of_it_stays_open(tmp_path):
    before = open_descriptors()

    async def scenario():
        launcher = StubLauncher(stage_bundle())
        stub = await launcher.start(
            StubLaunch(sandbox=sandbox(tmp_path, Confinement(STANDARD, paths=ANYWHERE, **NOTHING)))
        )
        stub.discard()

    asyncio.run(scenario())
    assert not open_descriptors() - before
