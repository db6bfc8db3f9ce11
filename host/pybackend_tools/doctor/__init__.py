"""Checks layer by layer whether this machine has what a server needs, and advises on everything missing."""
