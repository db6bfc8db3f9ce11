"""A stub that says anything that has the right types: every request is answered, and nothing else notices."""

import asyncio
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybackend.inference.request import InferenceRequest
from pybackend_wire.messages import StubMessage as Kind
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor
from tests.support.repositories import identity_config, write_model

BUNDLE = Path(__file__).parent / "scripted_stub"
LARGE = np.ones(10_000, np.float32)

BABBLE = """
import pathlib, select

def filled(value, names):
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    return names.get(value, value) if isinstance(value, str) else value

def execute(requests):
    directory = pathlib.Path(PATH)
    if (directory / "over").exists():
        return stub.result()
    names = {"$execution": stub.execution, "$output": stub.output_segment(), "$input": requests[0][0][0][3]}
    (directory / "over").touch()
    for messages, tail in json.loads((directory / "babble").read_text()):
        try:
            stub.send(*filled(messages, names), tail=bytes(tail))
        except OSError:
            break
    select.select([stub.socket], [], [], 0.02)  # the host may have something to say to it
    os._exit(0)
"""

NUMBERS = st.sampled_from([0, 1, 2, 3, 64, 1 << 20, (1 << 63) - 1])
TEXTS = st.sampled_from(
    ["", "IN", "OUT", "callee", "never", "nobody", "../x", "a\0b", "ä" * 300, "9" * 5000, "1", "-1"]
)
EXECUTIONS = st.sampled_from(["$execution", "$execution", 0, 999])
SEGMENTS = st.sampled_from(["$output", "$output", 0, 0, "$input", 999])
FLAGS = st.booleans()
TIMES = [1, 1, 1, 1]


def message(kind: Kind, *fields: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.just(int(kind)), *fields).map(list)


def several(strategy: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, max_size=most)


HONEST_PLACE = st.builds(
    lambda segment, slot: ["IN", "FP32", [16], segment, 64 * slot, 64], SEGMENTS, st.sampled_from([0, 1, 2])
)
ANY_PLACE = st.tuples(
    TEXTS,
    st.sampled_from(["FP32", "BYTES", "BOOL", "UINT8", "NOPE"]),
    several(NUMBERS, 4),
    SEGMENTS,
    NUMBERS,
    NUMBERS,
).map(list)
PLACES = several(HONEST_PLACE | HONEST_PLACE | ANY_PLACE)
FAILURES = st.none() | st.tuples(st.integers(0, 7), TEXTS).map(list)
VALUES = FLAGS | NUMBERS | TEXTS | st.just(0.5)
PARAMETERS = st.none() | st.dictionaries(TEXTS, VALUES, max_size=2)
RESULTS = st.tuples(FAILURES, PLACES, PARAMETERS).map(list)
OPTIONS = st.none() | st.tuples(
    TEXTS, NUMBERS | TEXTS, st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 1, (1 << 64) - 1]), PARAMETERS
).map(list)
LABELS = st.dictionaries(st.sampled_from(["a", "b", "", "le", "ä", "__x", "9"]), TEXTS, max_size=2)
BUCKETS = st.none() | several(st.sampled_from([0.5, 1.0, -1.0, 1e300]), 4)
METRIC_NAMES = st.sampled_from(["fuzz_total", "fuzz", "fuzz_sum", "", "9", "nv_inference_count", "ä", "a b"])

MESSAGES = st.one_of(
    message(Kind.RESULT, EXECUTIONS, *map(st.just, TIMES), several(st.none() | RESULTS, 2)),
    message(Kind.RESPOND, EXECUTIONS, st.sampled_from([0, 0, 0, 1]), FLAGS, st.none() | RESULTS),
    message(Kind.HANDED_BACK, several(EXECUTIONS)),
    message(
        Kind.CALL,
        NUMBERS,
        TEXTS,
        st.sampled_from([-1, 1, 7]),
        FLAGS,
        EXECUTIONS,
        PLACES,
        several(TEXTS),
        OPTIONS,
        several(TEXTS),
    ),
    message(
        Kind.CALL, NUMBERS, st.just("callee"), st.just(-1), FLAGS, EXECUTIONS, PLACES, st.just([]), OPTIONS, st.just([])
    ),
    message(Kind.LOCAL_CALL, TEXTS, *map(st.just, TIMES), NUMBERS, st.none() | st.integers(0, 8), FLAGS, PLACES),
    message(Kind.OCCUPIED, FLAGS),
    message(Kind.FOLLOWED, EXECUTIONS, NUMBERS, PLACES, several(RESULTS)),
    message(Kind.CANCEL_CALL, NUMBERS),
    message(Kind.DROPPED_OUTPUT, TEXTS),
    message(Kind.WROTE, TEXTS),
    message(Kind.READINESS, FLAGS, TEXTS),
    message(Kind.NEW_FAMILY, NUMBERS, METRIC_NAMES, TEXTS, st.integers(0, 2)),
    message(Kind.NEW_METRIC, NUMBERS, st.integers(0, 2), LABELS, BUCKETS),
    message(
        Kind.CHANGE_METRIC,
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from([1.0, -1.0, 1e308, "inf", "-inf", "nan"]),
    ),
    message(Kind.READ_METRIC, NUMBERS, st.integers(0, 3)),
    message(Kind.DROP_METRIC, st.integers(0, 3)),
    message(Kind.LOAD_MODEL, NUMBERS, TEXTS.filter("callee".__ne__), st.sampled_from(["", "{}", "{", "[]"]), PLACES),
    message(Kind.UNLOAD_MODEL, NUMBERS, st.just("nobody"), FLAGS),
    message(Kind.IS_MODEL_READY, NUMBERS, TEXTS, TEXTS),
    message(Kind.FREE_INPUT, several(st.tuples(SEGMENTS, st.sampled_from([0, 64])).map(list))),
    message(Kind.NEED_OUTPUT, st.sampled_from([0, 1, 1 << 20, (1 << 63) - 1])),
    message(Kind.DETACHED, SEGMENTS),
)
TAILS = st.sampled_from([0, 4, 256])
FRAMES = st.lists(st.tuples(st.lists(MESSAGES, min_size=1, max_size=4), TAILS), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def engine_and_run(tmp_path_factory):
    repository = tmp_path_factory.mktemp("fuzz")
    for name, code in (("callee", ""), ("never", "def execute(requests):\n    pass")):
        write_model(repository, name, code, identity_config())
        (repository / name / "1/model.py").write_text(code)
    with running_engine(repository, bundle=BUNDLE, explicit=True) as (engine, run):
        yield engine, run, repository


NAMES = itertools.count()


@pytest.mark.thorough
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(frames=FRAMES)
def test_whatever_a_stub_says(engine_and_run, frames):
    engine, run, repository = engine_and_run
    name = f"fuzzed_{next(NAMES)}"
    directory = write_model(repository, name, "", identity_config())
    (directory / "1/model.py").write_text(BABBLE.replace("PATH", repr(str(directory))))
    (directory / "babble").write_text(json.dumps(frames))
    complaints = []

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        callee = engine.repository.catalogue.find("callee").instances[0].pid
        async with asyncio.timeout(60):
            await engine.control.load(name)
            model = engine.repository.catalogue.find(name)
            requests = [InferenceRequest(name, inputs=[input_tensor("IN", LARGE)]) for _ in range(2)]
            answers = await asyncio.gather(
                *(engine.open(model.name, model.version).infer(request) for request in requests)
            )
            # Read before the memory is given back: whatever the stub was up to, the host can.
            told = [[bytes(output.data) for output in answer.outputs] for answer in answers]
            for answer in answers:
                answer.release()
            assert len(told) == 2
            await engine.control.unload(name)
            request = InferenceRequest("callee", inputs=[input_tensor("IN", LARGE)])
            answer = await engine.open("callee").infer(request)
            assert answer.error is None
            answer.release()
        assert engine.repository.catalogue.find("callee").instances[0].pid == callee, "another process was harmed"

    run(scenario())
    assert not complaints, complaints
    shutil.rmtree(directory)
