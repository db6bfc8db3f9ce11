"""Clients of other projects, fetched from the package index into environments of their own: ``python -m tests.peers``."""
