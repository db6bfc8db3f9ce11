"""Searches the configuration of models under load: instances, batches, threads.

A client of a server that runs for it.
"""
