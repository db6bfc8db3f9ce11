"""What ``--backend-config`` accepts, and what it says to what it does not."""

from pathlib import Path

import pytest

from pybackend.cli.command_parser import UsageError
from pybackend.modelconfig.backends import BackendPlaces
from pybackend.settings import Settings
from tests.support.command_line import serve_settings


def parsed(*flags: str) -> Settings:
    settings = serve_settings(["serve", "models", *flags])
    assert settings is not None
    return settings


@pytest.mark.parametrize(
    "text",
    [
        "python,shm-default-byte-size=1048576",
        "python,shm-growth-byte-size=1",
        "python,shm-region-prefix-name=prefix0",
        "python,shm_message_queue_size=1000",
        "python,thread-pool-size=1",
        "python,stub-timeout-seconds=30",
        "python,backend-directory=/opt/backends",
        "tensorrt,version-compatible=true",
        "vllm,thread-pool-size=-1",
        "python,shm-region-prefix-name=a=b,c",
    ],
)
def test_settings_are_accepted(text: str) -> None:
    """Those of other backends unread: that is how the reference treats them, and one command line may serve both."""
    assert parsed(f"--backend-config={text}", "--backend-config", text) == parsed()


def test_settings_of_every_backend_have_an_effect() -> None:
    texts = ("default-max-batch-size=8", "onnxruntime,default-max-batch-size=2", "onnxruntime,environment=/env.tar.gz")
    settings = parsed(*(f"--backend-config={text}" for text in texts))
    places = BackendPlaces(settings=settings.backend_settings)
    assert places.settings_of("pytorch") == {"default-max-batch-size": "8"}
    assert places.settings_of("onnxruntime") == {"default-max-batch-size": "2", "environment": "/env.tar.gz"}
    assert places.environment_of("onnxruntime") == Path("/env.tar.gz")
    assert places.environment_of("pytorch") is None
    assert not settings.warnings


@pytest.mark.parametrize("text", ["environment=/env", "python,environment=/env"])
def test_an_environment_belongs_to_one_backend(text: str) -> None:
    with pytest.raises(UsageError, match="an environment belongs to one backend, as in onnxruntime,environment=PATH"):
        parsed(f"--backend-config={text}")


@pytest.mark.parametrize(
    "text",
    [
        "onnxruntime,enviroment=/env",
        "python,unknown=1",
        "unknown=1",
        "python,thread-pool=1",
        "python,shm-message-queue-size=1",
        "pyhton,thread-pool-size=1",
    ],
)
def test_settings_that_do_not_exist_are_warned_of(text: str, snapshot) -> None:
    (warning,) = parsed(f"--backend-config={text}").warnings
    assert warning.startswith(f"--backend-config={text}: ")
    assert warning == snapshot


@pytest.mark.parametrize("backend", ["python,", ""])
@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("shm-default-byte-size", "1048575", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size", "0", "shm-growth-byte-size can't be smaller than or equal to zero"),
        ("shm-growth-byte-size", "-5", "shm-growth-byte-size can't be smaller than or equal to zero"),
        ("default-max-batch-size", "-1", "default-max-batch-size can't be negative"),
        ("thread-pool-size", "0", "thread-pool-size can't be less than 1"),
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero"),
        ("shm-default-byte-size", "64MB", "shm-default-byte-size must be a whole number"),
        ("shm-growth-byte-size", "1.5", "shm-growth-byte-size must be a whole number"),
        ("shm_message_queue_size", "many", "shm_message_queue_size must be a whole number"),
        ("thread-pool-size", "4x", "thread-pool-size must be a whole number"),
        ("stub-timeout-seconds", "soon", "stub-timeout-seconds must be a whole number"),
    ],
)
def test_values_are_checked(backend: str, setting: str, value: str, expected: str, snapshot) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(f"--backend-config={backend}{setting}={value}")
    assert str(caught.value).startswith(f'Bad option: "--backend-config". {expected}')
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("text", ["python", "python,x", "python,=1", "x=", "=3", "python,shm-region-prefix-name="])
def test_the_form_is_checked(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(f"--backend-config={text}")
    assert str(caught.value) == (
        "Bad option: \"--backend-config\". --backend-config option format is '<backend name>,<setting>=<value>'. "
        f"Got {text}"
    )


def test_an_empty_backend_is_none(snapshot) -> None:
    with pytest.raises(UsageError) as caught:
        parsed("--backend-config=,x=1")
    assert str(caught.value) == snapshot
