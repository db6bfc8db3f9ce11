"""Models that do not end as they should: their process is gone all the same when they are said to be unloaded."""

import asyncio
from pathlib import Path

from tests.integration.models.conftest import running_engine
from tests.support.engine import unload
from tests.support.gates import GATE, Gate
from tests.support.repositories import IDENTITY, identity_config, write_model

STAYS = (
    GATE
    + IDENTITY
    + """
    def initialize(self, args):
        self.directory = args["model_repository"]

    def finalize(self):
        pass_gate(self.directory, "finalize")
"""
)
SAYS_ITS_END_TWICE = (
    IDENTITY
    + """
    def finalize(self):
        import gc
        import time
        from pybackend_stub.channel import HostChannel
        (channel,) = [each for each in gc.get_objects() if isinstance(each, HostChannel)]
        for _ in range(2):
            channel.send([(41,)])
            time.sleep(0.1)
        while True:
            time.sleep(1)
"""
)


def test_an_unload_that_was_cut_short_is_taken_up_again(tmp_path):
    gate = Gate(write_model(tmp_path, "stays", STAYS, identity_config()), "finalize")

    async def unload_twice(engine):
        await engine.control.unload("stays")
        while not gate.arrivals:  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.01)
        return await engine.repository.unload_all(asyncio.get_running_loop().time())

    with running_engine(tmp_path, explicit=True) as (engine, run):
        pid = engine.repository.catalogue.find("stays").instances[0].pid
        assert run(unload_twice(engine)) is False
        assert not Path(f"/proc/{pid}").exists()


def test_one_that_says_twice_that_it_ends_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr("pybackend.instance.session.EXIT_GRACE_S", 0.5)
    write_model(tmp_path, "liar", SAYS_ITS_END_TWICE, identity_config())
    with running_engine(tmp_path) as (engine, run):
        pid = engine.repository.catalogue.find("liar").instances[0].pid
        run(asyncio.wait_for(unload(engine, "liar", 3600, 3600), 60))  # not the hour that it has
        assert not Path(f"/proc/{pid}").exists()
