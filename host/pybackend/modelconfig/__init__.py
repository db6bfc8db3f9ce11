"""Model configurations: reading, completion, validation, and the signatures that requests are checked against.

What an author has written wrong is a ModelConfigError, whose text names the field, the file and the way out. A directory
that cannot be read is a ModelLoadError.
"""
