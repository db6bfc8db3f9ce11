"""``pybackend pack``: from a file that lists packages to an archive that models run in, without conda being installed.

The journey: :mod:`reader` reads the file; :mod:`conda` or :mod:`python_tree` with :mod:`wheels` make a directory of
it; :mod:`contents` says what of that goes into the archive, with the compiled files of :mod:`bytecode`; :mod:`writer` writes
it. :mod:`packing` takes these steps in order. Nothing here is needed to use an archive.
"""

from pybackend.pack.errors import PackError
from pybackend.pack.options import PackedSize, PackOptions, PackResult
from pybackend.pack.packing import pack

__all__ = ["PackError", "PackOptions", "PackResult", "PackedSize", "pack"]
