"""``pybackend pack``: turns a list of packages into an archive for models to run in. Conda need not be installed.

Steps: :mod:`reader` reads the file; :mod:`conda`, or :mod:`python_tree` with :mod:`wheels`, installs the packages into
a directory; :mod:`contents` selects the files for the archive, including the compiled files from :mod:`bytecode`;
:mod:`writer` writes it. :mod:`packing` runs these steps in order. None of this is needed to use an archive.
"""

from pybackend_tools.pack.errors import PackError
from pybackend_tools.pack.options import PackedSize, PackOptions, PackResult
from pybackend_tools.pack.packing import pack

__all__ = ["PackError", "PackOptions", "PackResult", "PackedSize", "pack"]
