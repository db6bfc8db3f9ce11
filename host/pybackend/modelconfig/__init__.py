"""Model configurations: reading, completion, validation, and the signatures that requests are checked against.

A mistake of an author is a ModelConfigError, whose text names the field, the file and the way out. A directory
that cannot be read is a ModelLoadError.
"""
