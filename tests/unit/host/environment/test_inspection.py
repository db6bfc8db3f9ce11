"""What the check of an environment finds in an archive without unpacking it."""

import gzip
import tarfile

import pytest

from pybackend.environment.inspection import survey
from pybackend.errors import ModelEnvironmentError
from tests.unit.host.environment.conftest import files, header, tar_of

LINK = (header("bin/python", tarfile.SYMTYPE, "python3.11"), b"")
PATCH_LEVEL = b'#define PY_MAJOR_VERSION 3\n#define PY_VERSION      "3.11.7"\n'


def survey_of(archive, *entries, name="env.tar.gz", cut=None):
    content = gzip.compress(tar_of(*entries))
    return survey(archive(content[:cut], name), packs_lists=False)


def python_of(*arguments):
    return survey_of(*arguments).python


def test_version_of_python(archive):
    program = files(**{"bin__python3.11": b"\x7fELF"})
    library = files(**{"lib__python3.11__os.py": b"pass"})
    included = files(**{"include__python3.11__patchlevel.h": PATCH_LEVEL})
    assert python_of(archive, LINK, *program) == ""
    assert python_of(archive, LINK, *program, *library) == "3.11"
    assert python_of(archive, *library, *program, *included, LINK) == "3.11.7"


def test_names_of_modules(archive):
    program = files(**{"bin__python3.11": b"\x7fELF"})
    packages = {"numpy____init__.py": b"", "six.py": b"", "fast.cpython-311-x86_64-linux-gnu.so": b"", "data.txt": b""}
    installed = files(**{f"lib__python3.11__site-packages__{name}": data for name, data in packages.items()})
    assert survey_of(archive, LINK, *program, *installed).modules == {"numpy", "six", "fast"}
    elsewhere = files(**{"lib__python3.11__site-packages__more.pth": b"/srv/packages"})
    assert survey_of(archive, LINK, *program, *installed, *elsewhere).modules is None


def test_refusals(archive):
    program = files(bin__python=b"\x7fELF")
    with pytest.raises(ModelEnvironmentError, match="has no Python that this host could start: there is no bin/python"):
        survey_of(archive, *files(bin__activate=b"", lib__x=b"x"))
    with pytest.raises(
        ModelEnvironmentError, match=r"has Python 3\.7, models of this host run on CPython 3\.8 and newer"
    ):
        survey_of(archive, *program, *files(**{"lib__python3.7__os.py": b""}))
    with pytest.raises(ModelEnvironmentError, match="is broken or truncated"):
        survey_of(archive, *program, *files(data=bytes(range(256)) * 400), cut=-40)
