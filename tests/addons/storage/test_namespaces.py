"""Repositories in cloud storage as namespaces."""

import asyncio

import pytest

from pybackend.errors import InferenceError
from pybackend_addons.storage.mirrors import Mirrors
from tests.integration.models.test_namespaces import STEP, ask, saying
from tests.support.engine import engine_on
from tests.support.ensembles import write_ensemble
from tests.support.model_control import CONFIG
from tests.support.repositories import PREAMBLE, write_model
from tests.support.s3_server import CREDENTIALS, s3_server


@pytest.mark.spec("srv-R24")
def test_repositories_in_cloud_storage_are_namespaces(tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    write_model(tmp_path / "here", "m", saying(1), CONFIG)
    with s3_server() as storage:
        for prefix, number in ("first", 2), ("second", 3):
            storage.put(f"{prefix}/m/config.pbtxt", CONFIG)
            storage.put(f"{prefix}/m/1/model.py", PREAMBLE + saying(number))
        whole = write_ensemble(tmp_path / "draft", "whole", [("m", *STEP)])
        storage.put("second/whole/config.pbtxt", (whole / "config.pbtxt").read_text())
        storage.put("second/whole/1/", "")
        urls = [storage.url(prefix) for prefix in ("first", "second")]

        async def test():
            mirrors = Mirrors(urls, tmp_path / "cache")
            await mirrors.open()
            try:
                flags = {"explicit": True, "startup_models": ("whole", "here::m")}
                async with engine_on(tmp_path / "here", remote=mirrors, namespacing=True, **flags) as engine:
                    assert [await ask(engine, name) for name in ("whole", "here::m", "second::m")] == [3, 1, 3]
                    with pytest.raises(InferenceError):
                        await ask(engine, "first::m")
                    await engine.control.load(f"{urls[0]}::m")
                    storage.put("second/m/1/model.py", PREAMBLE + saying(4))
                    await engine.control.load("second::m")
                    assert [await ask(engine, name) for name in ("first::m", "whole")] == [2, 4]
            finally:
                mirrors.close()

        asyncio.run(test())
