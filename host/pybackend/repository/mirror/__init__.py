"""Repositories in cloud storage: local copies of their models, from which everything else loads."""
