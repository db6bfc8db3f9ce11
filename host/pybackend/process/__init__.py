"""Processes of models: how they are started or forked, what connects them with the host, and how they end."""
