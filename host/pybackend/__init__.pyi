from pybackend.in_process import *  # noqa: F403  its __all__ is the list

__version__: str
