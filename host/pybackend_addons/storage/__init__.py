"""Repositories in cloud storage: local copies of their models, from which everything else loads.

Storage that does not answer, or answers wrongly, is a StorageError.
"""
