"""The parameters that bound a model's processes."""

import pytest

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.loader import load_config
from pybackend.modelconfig.options import MemoryLimit, ModelOptions, options_of

MEGABYTE = 1024 * 1024
OF_FLAG = MemoryLimit(5 * MEGABYTE, "--process-memory-limit")


@pytest.fixture
def options(make_model):
    def read(process_memory: MemoryLimit | None = OF_FLAG, **parameters: str) -> ModelOptions:
        said = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
        )
        config = load_config(make_model('backend: "python"\n' + said), auto_complete=True)
        return options_of(config, process_memory=process_memory)

    return read


def test_a_model_that_says_nothing(options) -> None:
    said = options()
    assert (said.process_memory, said.renews_processes) == (OF_FLAG, False)


def test_neither_says_the_operator(options) -> None:
    assert options(None).process_memory is None


def test_everything_said(options) -> None:
    said = options(
        PROCESS_MEMORY_LIMIT_MB="300",
        RESTART_AFTER_REQUESTS="1000",
        RESTART_AFTER_REQUESTS_JITTER="50",
        RESTART_AT_MEMORY_MB="200",
    )
    assert said.process_memory == MemoryLimit(300 * MEGABYTE, "PROCESS_MEMORY_LIMIT_MB")
    assert (said.restart_after_requests, said.restart_jitter, said.restart_at_memory_bytes) == (
        1000,
        50,
        200 * MEGABYTE,
    )
    assert said.renews_processes


def test_nothing_is_a_limit_too(options) -> None:
    said = options(PROCESS_MEMORY_LIMIT_MB="0", RESTART_AFTER_REQUESTS="0", RESTART_AT_MEMORY_MB="0")
    assert (said.process_memory, said.renews_processes) == (None, False)


@pytest.mark.parametrize(
    "parameters",
    [
        {"PROCESS_MEMORY_LIMIT_MB": "2 GB"},
        {"RESTART_AFTER_REQUESTS": "-1"},
        {"RESTART_AFTER_REQUESTS_JITTER": "5.5"},
        {"RESTART_AT_MEMORY_MB": "much"},
        {"RESTART_AFTER_REQUESTS": "5", "PROCESS_GROUP": "pipeline"},
    ],
    ids=lambda parameters: next(iter(parameters)) + ("_in_a_group" if len(parameters) > 1 else ""),
)
def test_what_is_refused(options, parameters, snapshot) -> None:
    with pytest.raises(ModelConfigError) as refused:
        options(**parameters)
    assert str(refused.value) == snapshot
