"""The flags of the cache in Redis."""

import pytest

from pybackend.cli.command_parser import UsageError
from pybackend.errors import ServerError
from pybackend.settings import CacheSettings
from tests.support.command_line import serve_settings


def cache_of(*flags: str) -> CacheSettings | None:
    return serve_settings(["serve", "models", *flags]).cache


def test_options_may_be_together_or_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "me")
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    together = cache_of("--cache-config=redis,host=h,port=6379,user=you")
    apart = cache_of("--cache-config=redis,host=h", "--cache-config=redis,port=6379", "--cache-config=redis,user=you")
    assert together == apart
    assert together == CacheSettings("redis", {"host": "h", "port": "6379", "user": "you", "password": "secret"})


def test_an_option_that_is_missing() -> None:
    with pytest.raises(ServerError, match=r"^--cache-config=redis needs the setting 'port'"):
        cache_of("--cache-config=redis,host=h")


def test_a_second_cache() -> None:
    with pytest.raises(
        ServerError, match=r"^found multiple cache configurations, but only a single cache is currently"
    ):
        cache_of("--cache-config=local,size=1", "--cache-config=redis,host=h,port=1")


def test_a_port_that_is_none() -> None:
    with pytest.raises(UsageError, match="redis,port must be a whole number from 1 to 65535"):
        cache_of("--cache-config=redis,host=h,port=70000")


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cache = "--cache-config=redis,host=h,port=1", "--cache-config=redis,password=hush"
    serve_settings(["serve", "models", *cache, "--print-config"])
    line = 'cache-config = ["redis,host=h,port=1", "redis,password=(hidden)"]  # command line'
    assert line in capsys.readouterr().out.splitlines()
