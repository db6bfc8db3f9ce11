"""Looks whether this machine has what a server needs, layer by layer, and says what to do about what it has not."""
