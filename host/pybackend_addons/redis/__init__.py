"""The response cache in a Redis server."""
