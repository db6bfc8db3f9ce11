"""What a model's parameters say about its sandbox."""

import pytest

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.backends import BackendPlaces
from pybackend.modelconfig.loader import load_config
from pybackend.modelconfig.options import sandbox_options_of
from pybackend.sandbox.options import HOST_UID, SandboxOptions

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture
def options(make_model):
    def read(**parameters: str) -> SandboxOptions:
        text = (
            'backend: "python"\n'
            + TENSORS
            + "".join(
                f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
                for key, value in parameters.items()
            )
        )
        directory = make_model(text, name=f"m{len(parameters)}")
        return sandbox_options_of(
            load_config(directory, auto_complete=True, backends=BackendPlaces(directory)), directory
        )

    return read


def test_nothing_said(options):
    assert options(INPUT_COPY="yes") == SandboxOptions()


def test_everything_said(options, tmp_path):
    said = options(
        SANDBOX="strict",
        SANDBOX_NETWORK="yes",
        SANDBOX_UNIX_SOCKETS="no",
        SANDBOX_SUBPROCESSES="yes",
        SANDBOX_READ="/data/weights:$$TRITON_MODEL_DIRECTORY/shared",
        SANDBOX_WRITE="/data/out",
        SANDBOX_MEMORY_MB="512",
        SANDBOX_PROCESSES="64",
        SANDBOX_UID="1234",
    )
    assert said == SandboxOptions(
        level="strict",
        network=True,
        unix_sockets=False,
        subprocesses=True,
        read=("/data/weights", str(tmp_path / "m9" / "shared")),
        write=("/data/out",),
        memory_mb=512,
        processes=64,
        uid=1234,
    )
    assert options(SANDBOX_UID="host").uid == HOST_UID


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SANDBOX", "none"),
        ("SANDBOX_NETWORK", "true"),
        ("SANDBOX_READ", "data"),
        ("SANDBOX_READ", "/data:"),
        ("SANDBOX_WRITE", "/"),
        ("SANDBOX_WRITE", "/data/../.."),
        ("SANDBOX_MEMORY_MB", "0"),
        ("SANDBOX_MEMORY_MB", "95"),
        ("SANDBOX_MEMORY_MB", "200.5"),
        ("SANDBOX_PROCESSES", "-1"),
        ("SANDBOX_UID", "root"),
        ("SANDBOX_UID", "0"),
    ],
)
def test_a_value_that_is_none(options, key, value, snapshot):
    with pytest.raises(ModelConfigError) as refused:
        options(**{key: value})
    assert str(refused.value) == snapshot


def test_a_key_that_does_not_exist_is_no_silent_lack_of_protection(options):
    with pytest.raises(
        ModelConfigError,
        match=r"SANDBOX_NETWROK is not an option of the sandbox. Did you mean SANDBOX_NETWORK\? Options: SANDBOX, SANDBOX_",
    ):
        options(SANDBOX_NETWROK="no")
