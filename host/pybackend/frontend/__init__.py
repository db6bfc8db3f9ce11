"""Bytes in and out; no policy."""
