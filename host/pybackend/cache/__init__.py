"""Responses that were given before, so that the same question need not be asked of a model twice."""
