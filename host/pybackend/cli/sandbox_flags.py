"""The sandbox flags: how strongly models are isolated."""

from __future__ import annotations

import argparse

from pybackend.errors import ServerError
from pybackend.settings import SandboxSettings
from pybackend_wire.confinement import LEVELS


def add_sandbox_flags(group: argparse._ArgumentGroup) -> None:
    """Add every sandbox flag whose value is not a boolean."""
    default = SandboxSettings()
    group.add_argument(
        "--sandbox",
        choices=LEVELS,
        default=None,
        metavar="LEVEL",
        help=f"level for models that name none in their parameters: off, standard or strict [{default.level}]",
    )
    group.add_argument(
        "--sandbox-floor",
        choices=LEVELS,
        default=default.floor,
        metavar="LEVEL",
        help=f"lowest level for any model; models cannot widen it [{default.floor}]",
    )


def sandbox_settings(given: argparse.Namespace) -> SandboxSettings:
    """The sandbox settings that the flags select.

    Raises:
        ServerError: the default level is below the floor.
    """
    level, floor = given.sandbox or SandboxSettings().level, given.sandbox_floor
    if LEVELS.index(level) < LEVELS.index(floor):
        if given.sandbox is not None:
            raise ServerError(f"Error: --sandbox={level} is below --sandbox-floor={floor}.")
        level = floor
    return SandboxSettings(level, floor, given.sandbox_required, given.allow_model_overrides)
