"""Backends that come with the server: each directory has a ``model.py`` that serves models without a ``model.py``.

They run in the model's own environment, and import their frameworks only there. Beside the code lies the recipe of an
environment, ``requirements.txt``, for ``pybackend pack --backend NAME``.
"""
