"""A small but real conda channel, built from the interpreters of this machine and wheels, and kept for later runs.

Packages are what conda clients link: metadata with hashes, prefixes to replace in text and in binaries, entry points.
Nothing of it comes from a conda channel.
"""

import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.floor.environments import Unavailable, interpreters

PLACEHOLDER = ("/opt/" + "where_it_was_built_" * 20)[:255]

SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(platform.machine(), "linux-64")

_TIME_MS = 1_700_000_000_000
_MADE = ".made"
_KEPT_S = 3 * 24 * 3600


def cache_directory() -> Path:
    """Where tests keep what takes long to make."""
    return Path(os.environ.get("PYBACKEND_FLOOR_CACHE") or Path.home() / ".cache" / "pybackend-floor")


def kept(name: str, inputs: Sequence[object], make: Callable[[Path], None]) -> Path:
    """A directory that ``make`` fills once for the same inputs, and the same code."""
    identity = hashlib.blake2b(repr(inputs).encode() + Path(__file__).read_bytes(), digest_size=6).hexdigest()
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / f"{name}-{identity}"
    with open(f"{directory}.lock", "w") as lock:  # several test processes may want it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / _MADE).exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            _remove_outdated(cache, name)
            make(directory)
        (directory / _MADE).touch()
    return directory


def _remove_outdated(cache: Path, name: str) -> None:
    """What earlier versions of the code have made, and nobody has used for days."""
    for path in cache.glob(f"{name}-{'[0-9a-f]' * 12}"):
        with suppress(OSError):
            if time.time() - (path / _MADE).stat().st_mtime > _KEPT_S:
                shutil.rmtree(path)


def channel_minors() -> list[int]:
    """The CPythons that the channel has: the oldest and the newest that models may have, of those that are here."""
    found = sorted(interpreters())
    return sorted({found[0], found[-1]})


def conda_channel() -> Path:
    """The channel's directory.

    Raises:
        Unavailable: numpy cannot be had.
    """
    minors = channel_minors()
    inputs = [(minor, interpreters()[minor]) for minor in minors]

    def make(directory: Path) -> None:
        for minor in minors:
            _python(directory, minor)
            _numpy(directory, minor)
        _noarch(directory)
        _awkward(directory)
        write_index(directory)

    return kept("channel", inputs, make)


def package(
    channel: Path,
    tree: Path,
    name: str,
    version: str,
    *,
    build: str = "0",
    depends: Sequence[str] = (),
    constrains: Sequence[str] = (),
    prefixes: Mapping[str, str] | None = None,
    entry_points: Sequence[str] | None = None,
) -> None:
    """Write one package.

    Args:
        channel: its directory.
        tree: the files.
        name: of the package.
        version: of the package.
        build: its build string.
        depends: what it needs.
        constrains: what it does not go with.
        prefixes: files with the placeholder in them, and whether they are "text" or "binary".
        entry_points: makes it a package for every Python, with these programs.
    """
    noarch = entry_points is not None
    subdir = "noarch" if noarch else SUBDIR
    files = sorted(
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_symlink() or (path.is_file() and not path.is_dir())
    )
    index: dict[str, Any] = {
        "name": name, "version": version, "build": build, "build_number": 0, "depends": list(depends),
        "constrains": list(constrains), "subdir": subdir, "license": "see the package", "timestamp": _TIME_MS,
    }  # fmt: skip
    if noarch:
        index["noarch"] = "python"
    info = {
        "index.json": index,
        "paths.json": {"paths_version": 1, "paths": [_path(tree, file, prefixes or {}) for file in files]},
        "about.json": {},
    }
    if noarch:
        link = {"noarch": {"type": "python", "entry_points": list(entry_points or ())}, "package_metadata_version": 1}
        info["link.json"] = link
    base = f"{name}-{version}-{build}"
    (channel / subdir).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(channel / subdir / f"{base}.conda", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("metadata.json", json.dumps({"conda_pkg_format_version": 2}))
        archive.writestr(f"pkg-{base}.tar.zst", _tar([(file, tree / file) for file in files]))
        members = [(f"info/{name}", json.dumps(document).encode()) for name, document in info.items()]
        members.append(("info/files", "".join(f"{file}\n" for file in files).encode()))
        archive.writestr(f"info-{base}.tar.zst", _tar(members))
    (channel / subdir / f"{base}.index").write_text(json.dumps(index))


def write_index(channel: Path) -> None:
    for subdir in ("noarch", SUBDIR):
        (channel / subdir).mkdir(exist_ok=True)
        records = {}
        for path in sorted((channel / subdir).glob("*.conda")):
            content = path.read_bytes()
            records[path.name] = json.loads(path.with_suffix(".index").read_text()) | {
                "md5": hashlib.md5(content).hexdigest(),
                "sha256": hashlib.sha256(content).hexdigest(),
                "size": len(content),
            }
        document = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": records, "repodata_version": 1}
        (channel / subdir / "repodata.json").write_text(json.dumps(document))


def _path(tree: Path, file: str, prefixes: Mapping[str, str]) -> dict[str, Any]:
    path = tree / file
    content = b"" if path.is_dir() else path.read_bytes()
    entry = {
        "_path": file,
        "path_type": "softlink" if path.is_symlink() else "hardlink",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_in_bytes": len(content),
    }
    if file in prefixes:
        entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": prefixes[file]}
    return entry


def _tar(members: Sequence[tuple[str, Path | bytes]]) -> bytes:
    import zstandard

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            if isinstance(content, bytes):
                header = tarfile.TarInfo(name)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
            else:
                tar.add(content, name, recursive=False)
    return zstandard.ZstdCompressor(level=1, threads=-1).compress(buffer.getvalue())


def _python(channel: Path, minor: int) -> None:
    from pybackend_tools.pack.interpreter import probe
    from pybackend_tools.pack.python_tree import copy_interpreter

    interpreter = probe(interpreters()[minor])
    assert interpreter is not None
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        copy_interpreter(interpreter, tree)
        _make_smaller(tree)
        prefixes = {}
        for path in sorted(tree.rglob("*")):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                if os.fsencode(tree) in content and b"\0" not in content:
                    path.write_bytes(content.replace(os.fsencode(tree), PLACEHOLDER.encode()))
                    prefixes[str(path.relative_to(tree))] = "text"
        version = interpreter.version
        depends = [f"python_abi 3.{minor}.*"]
        package(
            channel, tree, "python", version, build="0_cpython", depends=depends, constrains=depends, prefixes=prefixes
        )
    with tempfile.TemporaryDirectory() as empty:
        package(
            channel, Path(empty), "python_abi", f"3.{minor}", build=f"0_cp3{minor}", constrains=[f"python 3.{minor}.*"]
        )


def small_interpreter(minor: int) -> Path:
    """A CPython 3.``minor`` in a directory of its own with less to compile: what is packed with it is packed sooner."""

    def make(directory: Path) -> None:
        from pybackend_tools.pack.interpreter import probe
        from pybackend_tools.pack.python_tree import copy_interpreter

        interpreter = probe(interpreters()[minor])
        assert interpreter is not None
        copy_interpreter(interpreter, directory / "tree")
        _make_smaller(directory / "tree", _RARELY_USED)

    return kept(f"cpython-3.{minor}", [interpreters()[minor]], make) / "tree"


_RARELY_USED = (
    *(
        "_pyrepl",
        "asyncio",
        "concurrent",
        "distutils",
        "email",
        "html",
        "http",
        "multiprocessing",
        "tomllib",
        "unittest",
        "xml",
    ),
    *(
        "_pydatetime.py",
        "doctest.py",
        "encodings/cp*",
        "encodings/iso*",
        "encodings/mac*",
        "encodings/euc*",
        "optparse.py",
    ),
    *("pdb.py", "pickletools.py", "smtplib.py", "statistics.py", "tarfile.py", "zoneinfo"),
)


def _make_smaller(tree: Path, more: Sequence[str] = ()) -> None:
    """Leave out what models need even less than the rest, since compiling it takes most of a test's time."""
    (library,) = tree.glob("lib*/python3.*")
    names = (
        "lib2to3",
        "pydoc_data",
        "xmlrpc",
        "wsgiref",
        "curses",
        "dbm",
        "sqlite3",
        "mailbox.py",
        "pydoc.py",
        "_pydecimal.py",
    )
    for path in [path for name in (*names, *more) for path in library.glob(name)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _numpy(channel: Path, minor: int) -> None:
    from uv import find_uv_bin

    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        packages = tree / "lib" / f"python3.{minor}" / "site-packages"
        done = subprocess.run(
            [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--python", interpreters()[minor],
             "--target", str(packages), "numpy"],
            capture_output=True, text=True, check=False, env=os.environ | {"UV_PYTHON_DOWNLOADS": "never"},
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"numpy for CPython 3.{minor} cannot be installed: {done.stderr.strip()[-300:]}")
        for name in ("bin", ".lock"):
            path = packages / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for path in list((packages / "numpy").rglob("tests")):
            shutil.rmtree(path)
        (metadata,) = packages.glob("numpy-*.dist-info")
        (metadata / "INSTALLER").write_text("conda\n")
        version = metadata.name.split("-")[1].removesuffix(".dist")
        depends = [f"python >=3.{minor},<3.{minor + 1}.0a0", f"python_abi 3.{minor}.*"]
        package(channel, tree, "numpy", version, build=f"py3{minor}_0", depends=depends)


def _write(tree: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if content.startswith("#!"):
            path.chmod(0o755)


def _noarch(channel: Path) -> None:
    """A package for every Python, with a program; and two that contradict each other."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        _write(tree, {
            "site-packages/greeter.py": "def main():\n    print('hello from conda')\n\n\nEDITED = False\n",
            "site-packages/greeter_old.py": "GONE = 'in version 2'\n",
            "site-packages/greeter-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n",
            "site-packages/greeter-1.0.dist-info/INSTALLER": "conda\n",
            "site-packages/greeter-1.0.dist-info/RECORD": "greeter.py,,\ngreeter_old.py,,\ngreeter-1.0.dist-info/METADATA,,\n"
            "greeter-1.0.dist-info/INSTALLER,,\ngreeter-1.0.dist-info/RECORD,,\n",
        })  # fmt: skip
        package(
            channel, tree, "greeter", "1.0", build="py_0", depends=["python"], entry_points=["greet = greeter:main"]
        )
    with tempfile.TemporaryDirectory() as empty:
        package(channel, Path(empty), "wants-old", "1.0", build="py_0", depends=["greeter <1"], entry_points=[])


def _awkward(channel: Path) -> None:
    """Every feature that has ever broken a packed environment: prefixes of all kinds, links, options in a shebang,
    activation."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        _write(tree, {
            "share/awkward/data.txt": "data\n",
            "share/awkward/conf.ini": f"[awkward]\nprefix = {PLACEHOLDER}\n",
            "bin/awkward-script": f"#!{PLACEHOLDER}/bin/python -E\nimport sys\nprint(sys.flags.ignore_environment, sys.executable)\n",
            "etc/conda/activate.d/awkward.sh": 'export AWKWARD_HOME="$CONDA_PREFIX/share/awkward"\n',
        })  # fmt: skip
        (tree / "share/awkward/program.bin").write_bytes(
            b"\x7fNOT\0" + PLACEHOLDER.encode() + b"/share/awkward/data.txt\0end"
        )
        (tree / "share/awkward/link").symlink_to("data.txt")
        (tree / "lib").mkdir()
        (tree / "lib/awkward").symlink_to("../share/awkward")
        os.link(tree / "share/awkward/data.txt", tree / "share/awkward/hard")
        prefixes = {
            "share/awkward/program.bin": "binary",
            "share/awkward/conf.ini": "text",
            "bin/awkward-script": "text",
        }
        package(channel, tree, "awkward", "1.0", prefixes=prefixes)


def write_wheel(
    directory: Path, name: str, version: str, files: Mapping[str, str], *, requires: Sequence[str] = ()
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    metadata = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = dict(files) | {
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{metadata}/RECORD", "".join(f"{member},,\n" for member in [*members, f"{metadata}/RECORD"]))
    return path
