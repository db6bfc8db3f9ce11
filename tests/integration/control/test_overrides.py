"""Configurations and files that come with a load in place of those in the repository."""

import asyncio
import json
import os
import textwrap

import pytest

from pybackend.errors import ErrorCode, InferenceError
from tests.support.model_control import CONFIG, answer, answering, gone, refusal, until
from tests.support.repositories import PREAMBLE, write_model


class TestConfigOverride:
    def test_takes_the_place_of_config_pbtxt_until_the_next_load(self, repository, start, marks):
        write_model(repository, "a", answering(1), CONFIG)
        write_model(repository, "a", answering(2), None, version=2)
        engine, run = start("a")
        assert engine.repository.catalogue.find("a").version == "2"
        override = {
            "backend": "python",
            "max_batch_size": 8,
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
            "version_policy": {"specific": {"versions": [1]}},
        }
        run(engine.control.load("a", json.dumps(override)))
        model = engine.repository.catalogue.find("a")
        assert (model.version, model.config.max_batch_size) == ("1", 8)
        run(engine.control.load("a", json.dumps(override)))
        assert engine.repository.catalogue.find("a") is model  # nothing has changed
        run(engine.control.load("a"))
        model = engine.repository.catalogue.find("a")
        assert (model.version, model.config.max_batch_size) == ("2", 0)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{", "failed to read model configuration from the configuration given to load 'a': it is not JSON"),
            (
                "[]",
                "failed to read model configuration from the configuration given to load 'a': expected a JSON object",
            ),
            (
                '"x"',
                "failed to read model configuration from the configuration given to load 'a': expected a JSON object",
            ),
            ('{"bckend": "python"}', "failed to read model configuration from the configuration given to load 'a'"),
            ('{"backend": 1}', "failed to read model configuration from the configuration given to load 'a'"),
            ('{"name": "b"}', "unexpected directory name 'a' for model 'b', directory name must equal model name"),
            ("[" * 100_000, "failed to read model configuration from the configuration given to load 'a'"),
        ],
    )
    def test_that_is_wrong(self, repository, start, text, reason):
        write_model(repository, "a", answering(1), CONFIG)
        engine, run = start("a")
        model = engine.repository.catalogue.find("a")
        error = refusal(run, engine.control.load("a", text))
        assert error.code is ErrorCode.INTERNAL
        assert error.message.startswith(f"failed to load 'a', failed to poll from model repository: {reason}")
        assert engine.repository.catalogue.find("a") is model

    def test_whose_version_policy_leaves_nothing(self, repository, start):
        write_model(repository, "a", answering(1), CONFIG)
        engine, run = start("a")
        error = refusal(run, engine.control.load("a", '{"version_policy": {"specific": {"versions": [7]}}}'))
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith(
            "load failed for model 'a': at least one version must be available under the version policy of model 'a'"
        )
        assert run(answer(engine, "a")) == 1


class TestFileOverride:
    @staticmethod
    def files(number: float, version: int = 1) -> dict[str, bytes]:
        return {f"file:{version}/model.py": (PREAMBLE + textwrap.dedent(answering(number))).encode()}

    CONFIG = json.dumps(
        {
            "backend": "python",
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
        }
    )

    def test_makes_a_model_that_no_repository_has(self, repository, start, scratch, marks):
        engine, run = start()
        run(engine.control.load("new", self.CONFIG, self.files(5, version=3)))
        model = engine.repository.catalogue.find("new")
        assert (model.version, run(answer(engine, "new"))) == ("3", 5)
        (root,) = scratch.iterdir()
        # An instance that dies finds its code again.
        os.kill(model.instances[0].pid, 9)
        assert _eventually(run, engine, "new") == 5
        run(engine.control.load("new", self.CONFIG, self.files(6)))
        assert (engine.repository.catalogue.find("new").version, run(answer(engine, "new"))) == ("1", 6)
        run(gone(engine, model))
        model = engine.repository.catalogue.find("new")
        run(engine.control.unload("new"))
        run(until(lambda: not list(root.iterdir())))
        error = refusal(run, engine.control.load("new"))
        assert error.message == (
            f"failed to load 'new', failed to poll from model repository: there is no directory 'new' in {repository}"
        )
        assert marks("new") == ["begin 5 3", "begin 5 3", "begin 6 1", "end 5", "end 6"]

    def test_hides_the_directory_in_the_repository_until_the_next_load(self, repository, start, scratch, marks):
        write_model(repository, "a", answering(1), CONFIG)
        engine, run = start("a")
        run(engine.control.load("a", self.CONFIG, self.files(5, version=2)))
        assert [model.version for model in engine.repository.catalogue.ready_versions("a")] == ["2"]
        assert run(answer(engine, "a")) == 5
        run(engine.control.load("a"))
        assert [model.version for model in engine.repository.catalogue.ready_versions("a")] == ["1"]
        assert run(answer(engine, "a")) == 1

    def test_needs_a_configuration(self, repository, start, scratch):
        write_model(repository, "a", answering(1), CONFIG)
        engine, run = start("a")
        error = refusal(run, engine.control.load("a", None, self.files(5)))
        assert error.code is ErrorCode.INTERNAL
        assert error.message.startswith(
            "failed to load 'a', failed to poll from model repository: files are given with"
        )
        assert run(answer(engine, "a")) == 1

    @pytest.mark.parametrize("path", ["../../x", "/../x", "1/../../m/x", ""])
    def test_stays_inside_the_models_folder(self, repository, start, scratch, path):
        engine, run = start()
        error = refusal(run, engine.control.load("m", self.CONFIG, {**self.files(5), f"file:{path}": b"x"}))
        assert error.code is ErrorCode.INTERNAL
        assert error.message.startswith(
            f"failed to load 'm', failed to poll from model repository: 'file:{path}' is no path inside the model's folder"
        )
        assert list(engine.repository.catalogue.models()) == []

    def test_takes_no_other_keys(self, repository, start, scratch):
        engine, run = start()
        error = refusal(run, engine.control.load("m", self.CONFIG, {"1/model.py": b"x"}))
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith("unrecognized load parameter '1/model.py'.")

    def test_that_cannot_be_loaded_leaves_nothing(self, repository, start, scratch):
        engine, run = start()
        for files in ({"file:1/model.py": b"raise ValueError"}, {"file:1/other.py": b""}, {"file:labels.txt": b""}):
            assert refusal(run, engine.control.load("m", self.CONFIG, files)).message.startswith(
                "load failed for model 'm'"
            )
            (root,) = scratch.iterdir()
            assert list(root.iterdir()) == []


def _eventually(run, engine, name):
    async def ask():
        async with asyncio.timeout(60):
            while True:
                try:
                    return await answer(engine, name)
                except (InferenceError, AssertionError):
                    await asyncio.sleep(0.01)

    return run(ask())
