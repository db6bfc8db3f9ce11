"""The flags of the response cache."""

import pytest

from pybackend.cli.command_parser import UsageError
from pybackend.errors import ServerError
from pybackend.settings import CacheSettings
from tests.support.command_line import serve_settings


def cache_of(*flags: str) -> CacheSettings | None:
    settings = serve_settings(["serve", "models", *flags])
    assert settings is not None
    return settings.cache


def test_none() -> None:
    assert cache_of() is None
    assert cache_of("--response-cache-byte-size=0") is None


@pytest.mark.parametrize("flag", ["--cache-config=local,size=1048576", "--response-cache-byte-size=1048576"])
def test_local(flag: str) -> None:
    assert cache_of(flag) == CacheSettings("local", {"size": "1048576"})


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            ["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or "
            "the other.",
        ),
    ],
)
def test_contradictions(flags: list[str], text: str) -> None:
    with pytest.raises(ServerError) as caught:
        cache_of(*flags)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("local", "--cache-config option format is '<cache name>,<setting>=<value>'"),
        (",size=1", "--cache-config option format is '<cache name>,<setting>=<value>'"),
        ("local,size", "--cache-config option format is '<cache name>,<setting>=<value>'"),
        ("local,size=", "--cache-config option format is '<cache name>,<setting>=<value>'"),
        ("local,size=0", "local,size must be a whole number from 1 to 9223372036854775807"),
        ("local,size=1MB", "local,size must be a whole number"),
        ("local,bytes=1", "the cache 'local' has no setting 'bytes'"),
        ("memcached,host=x", "unknown cache 'memcached'"),
    ],
)
def test_mistakes(value: str, text: str, snapshot) -> None:
    with pytest.raises(UsageError) as caught:
        cache_of(f"--cache-config={value}")
    assert text in str(caught.value)
    assert str(caught.value) == snapshot
