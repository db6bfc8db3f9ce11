"""Searches the form of one model that serves it best: other runtimes, conversions, precisions.

A client of a server that runs for it.
"""
