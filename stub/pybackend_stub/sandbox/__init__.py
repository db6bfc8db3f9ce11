"""Confines this process: what a model cannot be trusted with is taken away before its code runs."""

from pybackend_stub.sandbox.confine import ConfinementError, confine

__all__ = ["ConfinementError", "confine"]
