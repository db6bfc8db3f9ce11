"""The steps of a pack, in order."""

import os
from pathlib import Path

import pybackend
from pybackend.environment.manifest import MANIFEST_FILENAME, EnvironmentManifest, PackedPackage, host_platform
from pybackend_tools.pack import inventory
from pybackend_tools.pack.assembly import Assembled, assemble, look_up
from pybackend_tools.pack.bytecode import SourceFile, compile_modules
from pybackend_tools.pack.contents import Contents, file_of, file_with
from pybackend_tools.pack.errors import SpecificationError, output_error
from pybackend_tools.pack.lock import Lock, read_lock
from pybackend_tools.pack.needed import require_packages
from pybackend_tools.pack.options import FORMATS, PackOptions, PackResult
from pybackend_tools.pack.reader import read_specification
from pybackend_tools.pack.relocation import relocate_conda, relocate_tree, sources_to_compile
from pybackend_tools.pack.scratch import check_writable, default_work_directory, draft_of, scratch_directory
from pybackend_tools.pack.specification import CondaPrefix, Specification, VirtualEnvironment, identity
from pybackend_tools.pack.surprises import LARGE_BYTES, gigabytes
from pybackend_tools.pack.writer import write_archive


def pack(specification: Path, archive: Path, options: PackOptions | None = None) -> PackResult:
    """Create an archive for models to run in.

    ``specification``: an environment.yml, a requirements.txt, a pyproject.toml, or the directory of an environment.
    ``archive``: the file to write; an existing one is replaced atomically at the end. Raises PackError if packing
    failed; the kind of error says why, and ``status`` is the exit status of a command.
    """
    options = options or PackOptions()
    require_packages()
    given = read_specification(specification)
    if options.dry_run:
        with options.progress.step("look up packages"):
            return PackResult(None, packages=tuple(look_up(specification, given, options)))
    archive = Path(os.path.abspath(archive))
    archive_format = _format(archive, options)
    check_writable(archive)
    lock = _read_lock(given, options)
    work = Path(os.path.abspath(options.work_directory or default_work_directory()))
    with scratch_directory(work) as scratch:
        try:
            assembled = assemble(specification, given, options, lock, scratch / "env")
            contents = _collect(assembled, scratch / "compiled", options)
            made = lock or _lock_of(given, assembled, options)
            manifest = _manifest(assembled, contents, made, options)
        except OSError as error:
            raise output_error(error, "assemble the environment", work) from None
        size_bytes = _write(archive, archive_format, contents, manifest, options)
    if options.lock is not None and lock is None:
        made.write(options.lock)
    return PackResult(
        archive,
        manifest,
        size_bytes=size_bytes,
        unpacked_bytes=contents.size_bytes,
        seconds=dict(options.progress.seconds),
    )


def _format(archive: Path, options: PackOptions) -> str:
    named = next((name for name, suffixes in FORMATS.items() if archive.name.endswith(suffixes)), None)
    if options.archive_format is None and named is None:
        suffixes = ", ".join(suffix for each in FORMATS.values() for suffix in each)
        raise SpecificationError(f"{archive.name} has no known suffix: let the name end in one of {suffixes}")
    if options.archive_format is not None and named not in {None, options.archive_format}:
        raise SpecificationError(f"{archive.name} contradicts --format {options.archive_format}: leave one of them out")
    return options.archive_format or named or ""


def _read_lock(given: Specification, options: PackOptions) -> Lock | None:
    if options.lock is None:
        return None
    if isinstance(given, CondaPrefix | VirtualEnvironment):
        raise SpecificationError("--lock is for files that list packages: an existing environment is packed unchanged")
    if not options.lock.parent.is_dir():
        raise SpecificationError(f"--lock {options.lock}: the directory {options.lock.parent} does not exist")
    return read_lock(options.lock, _identity(given, options), host_platform())


def _identity(given: Specification, options: PackOptions) -> str:
    return identity(given, (options.python or "", *options.extras))


def _lock_of(given: Specification, assembled: Assembled, options: PackOptions) -> Lock:
    return Lock(
        _identity(given, options), host_platform(), assembled.version, list(assembled.conda), list(assembled.wheels)
    )


def _collect(assembled: Assembled, compiled: Path, options: PackOptions) -> Contents:
    with options.progress.step("collect files"):
        if assembled.is_conda:
            contents, rewritten = relocate_conda(assembled.prefix, options.warn)
        else:
            contents, rewritten = relocate_tree(assembled.prefix)
        if contents.size_bytes > LARGE_BYTES:
            options.warn(
                f"the environment has {gigabytes(contents.size_bytes)}: every node that serves it unpacks all of that"
            )
    with options.progress.step("compile modules") as advance:
        sources = [SourceFile(Path(file.path or ""), file.name) for file in sources_to_compile(contents, rewritten)]
        compiled.mkdir()
        found = compile_modules(assembled.python, assembled.cache_tag, sources, compiled, options.threads, advance)
        for name, path in found.items():
            contents.add(file_of(name, str(path)))
    return contents


def _manifest(assembled: Assembled, contents: Contents, lock: Lock, options: PackOptions) -> EnvironmentManifest:
    with options.progress.step("describe"):
        packages: list[PackedPackage] = inventory.python_packages(assembled.site_packages)
        if assembled.is_conda:
            packages += inventory.conda_packages(assembled.prefix)
        return EnvironmentManifest(
            platform=host_platform(),
            python=assembled.version,
            libc=contents.oldest_libc(),
            free_threaded=assembled.free_threaded,
            packages=tuple(sorted(packages, key=lambda package: (package.name.lower(), package.source))),
            variables=assembled.variables,
            content_hash=contents.digest(options.threads),
            lock=lock.to_json() if lock.conda or lock.wheels else "",
            created_by=f"pybackend {pybackend.__version__}",
        )


def _write(
    archive: Path, archive_format: str, contents: Contents, manifest: EnvironmentManifest, options: PackOptions
) -> int:
    # First in the archive, so that its manifest can be read without the rest.
    files = [file_with(MANIFEST_FILENAME, manifest.to_json().encode()), *contents.sorted()]
    with options.progress.step("write archive") as advance, draft_of(archive) as draft:
        write_archive(draft, files, archive_format, options.threads, contents.size_bytes, advance)
        return draft.tell()
