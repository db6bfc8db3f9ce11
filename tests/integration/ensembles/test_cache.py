"""Ensembles whose responses are kept: what is forgotten when parts change, and requests that go while they are looked
up."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.inference.response import InferenceResponse
from pybackend.model.cache.response_cache import LocalCache
from tests.integration.ensembles.conftest import Lab, passing
from tests.integration.models.conftest import running_engine
from tests.support.ensembles import ask, nothing_held, request_of, step, write_ensemble
from tests.support.gates import Gate
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.streams import function, reached, write_streams

SIZE_BYTES = 100_000_000
CACHED = "response_cache { enable: true }"
LARGE = np.arange(2_000_000, dtype=np.float32)  # digested in a thread
SMALL = LARGE[:10]

either_size = pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path, "part", IDENTITY, identity_config())
    write_ensemble(tmp_path, "e", [passing("part", "IN", "x"), passing("part", "x", "OUT")], extra=CACHED)
    write_ensemble(tmp_path, "outer", [passing("e", "IN", "OUT")], extra=CACHED)
    return tmp_path


@pytest.fixture
def lab(repository: Path) -> Iterator[Lab]:
    with running_engine(repository, cache=LocalCache(SIZE_BYTES), explicit=True) as (engine, run):
        yield Lab(engine, run)


def figures(lab: Lab, name: str) -> tuple[int, int, int]:
    """Hits, misses, and requests that ran through the steps."""
    statistics = lab.engine.repository.catalogue.find(name).statistics
    return statistics.cache_hit_count, statistics.cache_miss_count, statistics.execution_count


@pytest.mark.spec("srv-R21")
@either_size
def test_the_same_request_runs_through_the_steps_once(lab: Lab, array: np.ndarray) -> None:
    for _ in range(3):
        assert (lab.ask("e", {"IN": array})["OUT"] == array).all()
    assert figures(lab, "e") == (2, 1, 1)
    assert lab.engine.repository.catalogue.find("e").statistics.success_count == 3
    assert lab.engine.repository.catalogue.find("part").statistics.execution_count == 2
    assert (lab.ask("e", {"IN": array + 1})["OUT"] == array + 1).all()
    assert figures(lab, "e") == (2, 2, 2)


def test_an_ensemble_within_has_entries_of_its_own(lab: Lab) -> None:
    lab.ask("e", {"IN": SMALL}, requested_outputs=("OUT",))  # as the one around it asks
    lab.ask("outer", {"IN": SMALL})
    assert figures(lab, "outer") == (0, 1, 1)
    assert figures(lab, "e") == (1, 1, 1)
    lab.ask("outer", {"IN": SMALL})
    assert figures(lab, "outer") == (1, 1, 1)
    assert figures(lab, "e") == (1, 1, 1)


@pytest.mark.spec("srv-R21")
@pytest.mark.parametrize("name", ["e", "outer"])
def test_when_a_part_is_replaced_all_is_asked_anew(lab: Lab, repository: Path, name: str) -> None:
    """Also what an ensemble has kept that has the part in an ensemble within."""
    assert (lab.ask(name, {"IN": SMALL})["OUT"] == SMALL).all()
    code = repository / "part" / "1" / "model.py"
    code.write_text(code.read_text().replace(".as_numpy()", ".as_numpy() * 2"))
    lab.run(lab.engine.control.load("part"))
    assert (lab.ask(name, {"IN": SMALL})["OUT"] == 4 * SMALL).all()


def test_a_part_that_comes_back_is_asked_anew(lab: Lab) -> None:
    lab.ask("outer", {"IN": SMALL})
    lab.run(lab.engine.control.unload("part"))
    assert lab.engine.repository.catalogue.absence("outer").on_purpose
    lab.run(lab.engine.control.load("part"))
    lab.ask("outer", {"IN": SMALL})
    assert figures(lab, "outer") == (0, 2, 2)


@either_size
def test_a_request_that_is_cancelled_while_it_is_looked_up(lab: Lab, array: np.ndarray) -> None:
    async def main() -> None:
        answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
        pending = lab.engine.submit(
            lab.engine.repository.catalogue.find("e"), request_of("e", {"IN": array}), answer.set_result
        )
        pending.cancel()
        assert not answer.done()  # never from inside the calls
        cancelled = (await answer).error
        assert cancelled is not None
        assert cancelled.code is ErrorCode.CANCELLED
        await nothing_held(lab.engine)

    lab.ask("e", {"IN": array})
    lab.run(main())
    assert (lab.ask("e", {"IN": array})["OUT"] == array).all()
    assert figures(lab, "e")[2] == 1


def test_a_part_that_goes_while_a_request_is_looked_up_runs_its_step(lab: Lab) -> None:
    """The request was taken when the part was there; the next one is refused."""

    async def main() -> None:
        model = lab.engine.repository.catalogue.find("e")
        answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
        lab.engine.submit(model, request_of("e", {"IN": LARGE}), answer.set_result)
        await lab.engine.control.unload("part")
        response = await answer
        assert response.error is None, response.error
        response.release()
        await nothing_held(lab.engine)

    lab.run(main())
    assert lab.refusal("e", {"IN": SMALL}).code is ErrorCode.NOT_FOUND


def test_the_end_of_the_server_waits_for_what_is_looked_up(repository: Path) -> None:
    answers: list[InferenceResponse] = []
    with running_engine(repository, cache=LocalCache(SIZE_BYTES)) as (engine, run):

        async def submit() -> None:
            engine.submit(engine.repository.catalogue.find("outer"), request_of("outer", {"IN": LARGE}), answers.append)

        run(submit())
    (answer,) = answers
    assert answer.error is None, answer.error


def test_only_results_are_kept(tmp_path: Path) -> None:
    """No errors, and nothing for a request that was given up."""
    write_streams(tmp_path, "lab", "")
    code, text = ("TYPE_STRING", [1]), ("TYPE_STRING", [-1])
    io = [
        f"{{ name: {name!r} data_type: {kind[0]} dims: {kind[1]} }}" for name, kind in (("CODE", code), ("TEXT", text))
    ]
    write_ensemble(tmp_path, "coded", [step("lab", {"CODE": "CODE"}, {"TEXT": "TEXT"})], *io, extra=CACHED)
    cache = LocalCache(SIZE_BYTES)
    with running_engine(tmp_path, cache=cache) as (engine, run):
        lab = Lab(engine, run)
        fails = function("return [failed('no luck')]")
        for _ in range(2):
            assert lab.refusal("coded", {"CODE": fails}).message == "in ensemble 'coded', no luck"
        assert (cache.figures.entries, figures(lab, "coded")[:2]) == (0, (0, 2))

        async def given_up() -> None:
            gate = Gate(tmp_path, "here")
            waits = function(f"pass_gate({str(tmp_path)!r}, 'here')\nreturn [text('late')]")
            answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
            pending = engine.submit(
                engine.repository.catalogue.find("coded"), request_of("coded", {"CODE": waits}), answer.set_result
            )
            await reached(gate)
            pending.cancel()
            gate.open()
            error = (await answer).error
            assert error is None or error.code is ErrorCode.CANCELLED
            assert cache.figures.entries == (error is None)  # the step may have been through with it
            await nothing_held(engine)

        run(given_up())


def test_many_at_once_are_all_answered(lab: Lab) -> None:
    async def main() -> None:
        arrays = [LARGE[: 300_000 + 100_000 * (number % 3)] + number % 5 for number in range(30)]
        answers = await asyncio.gather(*(ask(lab.engine, "outer", {"IN": array}) for array in arrays))
        for answer, array in zip(answers, arrays, strict=True):
            assert (answer["OUT"] == array).all()
        await nothing_held(lab.engine)

    lab.run(main())
    hits, misses, executions = figures(lab, "outer")
    assert (hits + misses, misses) == (30, executions)
