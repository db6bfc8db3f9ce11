"""The models of the tests of access."""

from tests.e2e.access.conftest import repository

__all__ = ["repository"]
