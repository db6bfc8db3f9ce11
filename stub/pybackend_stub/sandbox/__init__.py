"""Confines this process: removes what a model must not have, before the model's code runs."""

from pybackend_stub.sandbox.confine import ConfinementError, confine

__all__ = ["ConfinementError", "confine"]
