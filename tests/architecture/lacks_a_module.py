"""A module that cannot be imported, because one that it imports does not exist."""

import no_such_module  # noqa: F401
