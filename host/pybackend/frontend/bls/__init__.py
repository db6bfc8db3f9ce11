"""Requests of models: the front end whose clients are the models that this server runs."""
