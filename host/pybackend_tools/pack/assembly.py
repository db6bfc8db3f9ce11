"""Turns a specification into a directory with an interpreter and its packages."""

import ast
import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybackend.environment.hooks import VARIABLES_HOOK
from pybackend_tools.pack import conda, inventory, wheels
from pybackend_tools.pack.errors import PackError, SpecificationError, UnpackableError
from pybackend_tools.pack.interpreter import Interpreter, find_interpreter, is_version, minor_of
from pybackend_tools.pack.lock import Lock
from pybackend_tools.pack.options import PackedSize, PackOptions
from pybackend_tools.pack.python_tree import base_interpreter, copy_interpreter, copy_packages
from pybackend_tools.pack.specification import (
    CondaPackages,
    CondaPrefix,
    Specification,
    VirtualEnvironment,
    WheelPackages,
    index_options,
)
from pybackend_tools.pack.surprises import WITHOUT_NUMPY, surprises
from pybackend_tools.pack.wheels import WheelOrder

_QUESTION = """
import os, sys, sysconfig
paths = sysconfig.get_paths()
# Nothing is compiled there yet: importing json and platform would double the time.
print(ascii({
    "version": sys.version.split()[0],
    "cache_tag": sys.implementation.cache_tag,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "site_packages": sorted({os.path.realpath(paths[name]) for name in ("purelib", "platlib")}),
}))
"""


@dataclass(frozen=True)
class Assembled:
    """A complete environment."""

    prefix: Path
    is_conda: bool  # conda's records list its contents
    python: Path
    version: str
    cache_tag: str  # part of the names of compiled files
    free_threaded: bool
    site_packages: tuple[Path, ...]  # directories of its packages
    conda: Sequence[dict[str, Any]] = ()  # packages from conda channels, as described by their index
    wheels: tuple[str, ...] = ()  # lines of a requirements file that pin all other packages
    variables: dict[str, str] = field(default_factory=dict, hash=False)  # environment variables for its models


def assemble(
    file: Path, specification: Specification, options: PackOptions, lock: Lock | None, prefix: Path
) -> Assembled:
    """Create the environment, or inspect an existing one.

    ``lock``: pinned packages to install, None to resolve them.

    Raises:
        PackError: the environment cannot be created; the kind of error says why.
        OSError: a file cannot be read or written.
    """
    if isinstance(specification, CondaPackages):
        return _from_conda(file, specification, options, lock, prefix)
    if isinstance(specification, WheelPackages):
        return _from_wheels(specification, options, lock, prefix)
    _refuse_wishes(specification, options)
    if isinstance(specification, VirtualEnvironment):
        with options.progress.step("copy packages"):
            interpreter = base_interpreter(specification.prefix)
            inventory.refuse_editable(specification.prefix.glob("lib/python3*/site-packages"), specification.prefix)
            copy_interpreter(interpreter, prefix)
            copy_packages(specification.prefix, interpreter, prefix)
        assembled = _describe(prefix, is_conda=False)
    else:
        assembled = _describe(specification.prefix, is_conda=True)
    if not any((directory / "numpy").is_dir() for directory in assembled.site_packages):
        options.warn(WITHOUT_NUMPY)
    return assembled


def _refuse_wishes(given: CondaPrefix | VirtualEnvironment, options: PackOptions) -> None:
    """Refuse command-line options that make no sense for a complete environment."""
    for flag, value in (("--python", options.python), ("--extra", options.extras)):
        if value:
            raise SpecificationError(f"{given.prefix} is packed unchanged: {flag} is for files that list packages")


def _from_conda(file: Path, given: CondaPackages, options: PackOptions, lock: Lock | None, prefix: Path) -> Assembled:
    with options.progress.step("install packages") as advance:
        order = conda.CondaOrder(
            given.channels,
            conda_specs(given, options),
            options.msgpack,
            lock.conda if lock is not None else None,
            prefix,
        )
        records = conda.carry_out(order, advance)
        _python_version(file, records)
    wanted = WheelOrder(Path(os.path.abspath(file)).parent, given.requirements)
    known = {record["name"]: record.get("size") or 0 for record in records}
    found: dict[str, int] = {}
    python = prefix / "bin" / "python"
    if given.requirements and lock is None:
        with suppress(PackError):  # it proves nothing: conda's packages may satisfy the request
            found = _look_up_wheels(wanted, python, options)
    _warn(options, known | found)
    if given.requirements:
        _install_wheels(wanted, python, options, lock, known)
    if given.variables:
        _write_activation(prefix, given.variables)
    return _describe(
        prefix,
        is_conda=True,
        records=records,
        wanted=wanted,
        hashes=options.lock is not None,
        lock=lock,
        variables=given.variables,
    )


def conda_specs(given: CondaPackages, options: PackOptions) -> tuple[str, ...]:
    """The packages requested by the file and the command line."""
    if options.python is None:
        return given.specs
    if not options.python.replace(".", "").isdigit():
        raise SpecificationError(
            f"--python {options.python}: a conda environment gets its python from a channel: write a version"
        )
    return (*given.specs, f"python {options.python}.*")


def _from_wheels(given: WheelPackages, options: PackOptions, lock: Lock | None, prefix: Path) -> Assembled:
    order = wheel_order(given, options)
    interpreter = _chosen_interpreter(given, options, lock)
    if lock is None:
        # First, so that a mistake is told at once, and the sizes before any large download.
        _warn(options, _look_up_wheels(order, interpreter.executable, options))
    elif lock.python != interpreter.version:
        options.warn(
            f"the lock was written with CPython {lock.python}, this is {interpreter.version}: the packages are the same"
        )
    with options.progress.step("copy interpreter"):
        python = copy_interpreter(interpreter, prefix)
    _install_wheels(order, python, options, lock, [])
    return _describe(prefix, is_conda=False, wanted=order, hashes=options.lock is not None, lock=lock)


def _chosen_interpreter(given: WheelPackages, options: PackOptions, lock: Lock | None) -> Interpreter:
    """The interpreter selected by the command line, the lock, or a file beside the requirements."""
    if lock is not None:
        if options.python is None or is_version(options.python):
            with suppress(SpecificationError):  # it was removed from this machine
                return find_interpreter(lock.python, given.requires_python)
        return find_interpreter(options.python or minor_of(lock.python), given.requires_python)
    if options.python is not None:
        return find_interpreter(options.python, given.requires_python)
    file = given.file.parent / ".python-version"  # uv and pyenv use it too
    with suppress(OSError, UnicodeDecodeError):
        for line in file.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                return find_interpreter(line.strip(), given.requires_python, str(file))
    return find_interpreter(None, given.requires_python)


def wheel_order(given: WheelPackages, options: PackOptions) -> WheelOrder:
    """The packages to request from uv."""
    directory = given.file.parent
    if given.requirements:
        if options.extras:
            raise SpecificationError(f"{given.file} has no extras: --extra is for a pyproject.toml")
        return WheelOrder(directory, given.requirements)
    if given.is_project:
        return WheelOrder(directory, packages=(directory,), extras=options.extras)
    return WheelOrder(directory, projects=(given.file,), extras=options.extras)


def _look_up_wheels(order: WheelOrder, python: Path, options: PackOptions) -> dict[str, int]:
    """The packages that will be installed. uv caches the result, so resolving again is cheap."""
    with options.progress.step("look up packages"):
        found = wheels.resolve(order, [f"--python={python}"])
    return {package.name: package.size_bytes or 0 for package in found}


def _install_wheels(
    order: WheelOrder, python: Path, options: PackOptions, lock: Lock | None, known: Iterable[str]
) -> None:
    with options.progress.step("install wheels"):
        if lock is not None:
            lines = (*index_options(order.lines), *lock.wheels)
            wheels.install(WheelOrder(order.directory, lines, packages=order.packages), python, dependencies=False)
        elif options.msgpack and not any(name.startswith("msgpack") for name in known):
            wheels.install_with_msgpack(order, python)
        else:
            wheels.install(order, python)


def _warn(options: PackOptions, packages: dict[str, int]) -> None:
    for sentence in surprises(packages):
        options.warn(sentence)


def _write_activation(prefix: Path, variables: dict[str, str]) -> None:
    """Write a hook for users who activate the environment by hand; models get the variables from the manifest."""
    directory = prefix / "etc" / "conda" / "activate.d"
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    (directory / VARIABLES_HOOK).write_text("".join(lines))


def _describe(
    prefix: Path,
    *,
    is_conda: bool,
    records: Sequence[dict[str, Any]] = (),
    wanted: WheelOrder | None = None,
    hashes: bool = False,
    lock: Lock | None = None,
    variables: dict[str, str] | None = None,
) -> Assembled:
    python = prefix / "bin" / "python"
    answer = _ask(python, prefix)
    site_packages = tuple(Path(path) for path in answer["site_packages"])
    inventory.refuse_editable(site_packages, prefix if wanted is None else "the environment")
    pins: list[str] = []
    if lock is not None:
        pins = lock.wheels
    elif wanted is not None:
        names = inventory.installed_names(site_packages, "uv") - {
            wheels.normalised(wheels.project_name(package)) for package in wanted.packages
        }
        pins = wheels.pinned(names, index_options(wanted.lines), python, wanted.directory, hashes=hashes)
    known = answer | {"site_packages": site_packages}
    return Assembled(prefix, is_conda, python, conda=records, wheels=tuple(pins), variables=variables or {}, **known)


def _ask(python: Path, prefix: Path) -> dict[str, Any]:
    if not python.exists():
        raise UnpackableError(f"{prefix} has no bin/python, which an environment for models needs")
    done = subprocess.run(
        [python, "-I", "-B", "-c", _QUESTION], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    if done.returncode:
        raise UnpackableError(f"{python} does not start: {done.stderr.strip()[-500:]}")
    answer: dict[str, Any] = ast.literal_eval(done.stdout)
    release = tuple(int(number) for number in answer["version"].split(".")[:2])
    if release < (3, 8):
        raise UnpackableError(f"{python} is CPython {answer['version']}; models run in 3.8 and newer")
    return answer


def look_up(file: Path, specification: Specification, options: PackOptions) -> list[PackedSize]:
    """Packages that would be installed, with their download sizes; installs nothing."""
    if isinstance(specification, CondaPackages):
        return _look_up_conda(file, specification, options)
    if isinstance(specification, WheelPackages):
        interpreter = _chosen_interpreter(specification, options, None)
        found = wheels.resolve(wheel_order(specification, options), [f"--python={interpreter.executable}"])
        return [PackedSize("python", interpreter.version, 0, str(interpreter.executable)), *found]
    _refuse_wishes(specification, options)
    prefix = specification.prefix
    answer = _ask(prefix / "bin" / "python", prefix)
    packages = inventory.conda_packages(prefix) if isinstance(specification, CondaPrefix) else []
    packages += inventory.python_packages(map(Path, answer["site_packages"]))
    return [PackedSize(package.name, package.version, 0, package.source) for package in packages]


def _python_version(file: Path, records: Sequence[dict[str, Any]]) -> str:
    version = next((str(record["version"]) for record in records if record["name"] == "python"), None)
    if version is None:
        raise SpecificationError(f"{file} lists no python: add it to the dependencies, such as `- python=3.12`")
    return version


def _look_up_conda(file: Path, given: CondaPackages, options: PackOptions) -> list[PackedSize]:
    records = conda.carry_out(
        conda.CondaOrder(given.channels, conda_specs(given, options), options.msgpack), lambda _done, _total: None
    )
    found, version = conda.sizes(records), _python_version(file, records)
    if given.requirements:
        names = {wheels.normalised(package.name) for package in found}
        order = WheelOrder(Path(os.path.abspath(file)).parent, given.requirements)
        found += [
            package
            for package in wheels.resolve(order, [f"--python-version={minor_of(version)}"])
            if wheels.normalised(package.name) not in names
        ]
    return found
