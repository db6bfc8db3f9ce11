"""The flags of the sandbox."""

import pytest

from pybackend.cli.command_parser import UsageError
from pybackend.errors import ServerError
from pybackend.settings import SandboxSettings
from tests.support.command_line import serve_settings


def sandbox_of(*flags: str) -> SandboxSettings:
    settings = serve_settings(["serve", "models", *flags])
    assert settings is not None
    return settings.sandbox


def test_the_floor_lifts_the_level_that_nobody_has_named():
    assert sandbox_of("--sandbox-floor=strict") == SandboxSettings("strict", "strict")
    assert sandbox_of("--sandbox=strict", "--sandbox-floor=standard") == SandboxSettings("strict", "standard")


def test_a_level_below_the_floor_contradicts_it():
    with pytest.raises(ServerError, match="--sandbox=off is below --sandbox-floor=standard"):
        sandbox_of("--sandbox=off", "--sandbox-floor=standard")


@pytest.mark.parametrize("flag", ["--sandbox", "--sandbox-floor"])
def test_a_level_that_does_not_exist(flag):
    with pytest.raises(UsageError, match=f'Bad option: "{flag}"'):
        sandbox_of(f"{flag}=paranoid")
