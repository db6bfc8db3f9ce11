"""Rows of the server's table of plugins: APIs, ports for clouds, storage, caches, and several machines."""
