"""A test that fails may leave what it shared with others broken, such as a server: the next test gets new ones.

A plugin of pytest.
"""

from collections.abc import Iterator
from typing import Any

import pytest

_OF_THE_RUN = {"no_process_is_left_behind"}
"""Fixtures that no test can break."""

_shared: dict[pytest.FixtureDef[Any], pytest.FixtureRequest] = {}
"""Fixtures of several tests that exist now, oldest first."""

_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Note a shared fixture, once those that it needs are there."""
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function" and fixturedef.argname not in _OF_THE_RUN:
            _shared[fixturedef] = request


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _shared.pop(fixturedef, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note that a test has failed."""
    report: Any = yield
    if report.failed:
        item.stash[_failed] = True
    return report  # type: ignore[no-any-return]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End the fixtures that a failed test shared with others."""
    try:
        return (yield)
    finally:
        if item.stash.get(_failed, False):
            used = set(getattr(item, "fixturenames", ()))
            for fixturedef, request in reversed(list(_shared.items())):
                if fixturedef.argname in used:
                    fixturedef.finish(request)  # type: ignore[arg-type]
