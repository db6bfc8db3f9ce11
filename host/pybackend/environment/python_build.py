"""How the interpreter of this process was built, as ``sysconfig`` tells it: the server's costs depend on it.

Only the standard library is imported here: ``make`` asks interpreters with this module before they have our packages.
"""

import sys
import sysconfig

OPTIMISED_BUILDS = (
    "those of distributions, of the images docker.io/library/python, of uv and conda are optimised; so is one that is configured "
    "with --enable-optimizations --with-lto (pyenv takes them from PYTHON_CONFIGURE_OPTS)"
)

COST = "each request takes 1.04 to 1.45 times the CPU"
"""Seven comparisons of the same code on two builds of CPython 3.11; docs/performance.md has them."""


def is_optimised() -> bool:
    """Whether this interpreter was compiled with the optimisations that its build offers, as far as can be known.

    Distributions drive the build themselves, so the arguments of ``configure`` do not tell: an interpreter below
    ``/usr`` counts as optimised, unless it was built for debugging.
    """
    if sysconfig.get_config_var("Py_DEBUG"):
        return False
    arguments = sysconfig.get_config_var("CONFIG_ARGS")
    return not arguments or "--enable-optimizations" in arguments or sys.base_prefix == "/usr"
