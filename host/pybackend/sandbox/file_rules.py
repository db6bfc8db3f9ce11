"""Which files the process of a model may reach: the rules of both levels, as pairs of a path and letters.

Landlock knows only what is allowed, and what is allowed holds for everything below. So "everything but" is said by listing
what lies beside the way to what is hidden. What comes to lie there later is hidden too, until the process is started anew.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pybackend_wire.confinement import DEVICE, EXECUTE, LIST, READ, WRITE

Rules = list[tuple[str, str]]

_READ_ONLY, _PROGRAMS, OWN = READ, READ + EXECUTE, READ + EXECUTE + WRITE

_DEVICES = ("null", "zero", "full", "random", "urandom")
_TERMINALS = ("tty", "ptmx", "pts")
_GPU_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "dri", "kfd")
_GPU_FILES = (
    "/proc/driver/nvidia",
    "/sys/bus/pci",
    "/sys/devices",
    "/sys/module/nvidia",
    "/proc/devices",
    "/proc/modules",
)

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_PROGRAM_DIRECTORIES = (
    "/bin",
    "/sbin",
    "/usr",
    "/etc/alternatives",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/passwd",
)
_FACTS = (
    "/usr/share/zoneinfo", "/etc/localtime", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/mime.types",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems",
    "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/random", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
_SYSTEM_STATE = (
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/module",
)

_NAME_LOOKUP = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
    "/run/systemd/resolve",
)  # fmt: skip

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  models may use them at standard, as programs do

_SECRETS = ("/run/secrets", "/var/run/secrets")
"""Where containers find their passwords and tokens."""

_OF_HOME = (".local", ".pyenv", ".conda", ".asdf", ".nvm", ".cargo", ".rustup", ".nix-profile", "nltk_data", ".fonts")
"""Hidden entries of a home directory that hold programs and data; the others hold keys and what is nobody's business."""

_CACHES = (
    ".cache/huggingface", ".cache/torch", ".cache/torch_extensions", ".cache/matplotlib", ".config/matplotlib",
    ".cache/fontconfig", ".cache/numba", ".cache/joblib", ".cache/clip", ".cache/whisper", ".cache/vllm",
    ".triton", ".keras", ".insightface", ".paddleocr", ".EasyOCR", ".nv", "nltk_data", "scikit_learn_data",
    "tensorflow_datasets", ".deepface", ".u2net",
)  # fmt: skip
"""Of a home directory: where libraries of the field keep weights, data and what they have compiled."""

_CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "KERAS_HOME",
    "NLTK_DATA", "JOBLIB_CACHE_DIR", "SENTENCE_TRANSFORMERS_HOME", "SCIKIT_LEARN_DATA", "TFDS_DATA_DIR", "CUDA_CACHE_PATH",
    "CUPY_CACHE_DIR", "VLLM_CACHE_ROOT",
)  # fmt: skip
"""Environment variables by which an operator puts them elsewhere."""


@dataclass(frozen=True)
class ServerPlaces:
    """What the server has on disk.

    Attributes:
        repositories: directories of models.
        private: directories of the server's own: no model has any business there.
        bundle: the code of stubs.
        home: of the user that the server runs as, "" for none.
        working_directory: that models inherit.
    """

    repositories: tuple[str, ...]
    private: tuple[str, ...]
    bundle: str
    home: str
    working_directory: str


@dataclass(frozen=True)
class ModelPlaces:
    """What one process of a model needs.

    Attributes:
        directory: of the model.
        python: directories of its interpreter and packages.
        backend: directory of its Python-based backend, "" for none.
        scratch: a directory of its own, "" for none.
        read: more paths to read.
        write: more paths to write.
        gpu: it uses one.
        subprocesses: it starts processes.
        network: it uses the internet protocols.
    """

    directory: str
    python: tuple[str, ...]
    backend: str = ""
    scratch: str = ""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    gpu: bool = False
    subprocesses: bool = True
    network: bool = True


def standard_rules(server: ServerPlaces, model: ModelPlaces, *, as_root: bool) -> Rules:
    """All that an honest model reaches: the system, its own files, caches and temporary files; no other model's files.

    Args:
        server: what is hidden.
        model: what is its own.
        as_root: the process keeps the superuser's id, to whom files that nobody may read are open too.
    """
    hidden = _hidden(server)
    writable = [os.path.realpath(path) for path in temporary_directories()]
    rules = list(_beside(hidden, writable, as_root))
    rules += [(path, _PROGRAMS) for repository in server.repositories for path in _no_models(repository)]
    rules += [("/proc", _READ_ONLY), *((path, _READ_ONLY) for path in _SYSTEM_STATE)]
    rules += _devices(("shm", *_TERMINALS), gpu=True)
    rules += [(path, OWN) for path in (*writable, *_caches(server.home))]
    if not _is_beside(server.working_directory, hidden):
        rules.append((server.working_directory, LIST))  # else modules that lie there would not be found
    return rules + _own(server, model, OWN)


def strict_rules(server: ServerPlaces, model: ModelPlaces) -> Rules:
    """What a model needs to run at all, and what it declares."""
    rules: Rules = [(path, _PROGRAMS) for path in _LIBRARIES]
    rules += [(path, _READ_ONLY) for path in _FACTS]
    rules += _devices((), gpu=model.gpu)
    if model.network:
        rules += [(path, _READ_ONLY) for path in _NAME_LOOKUP]
    if model.subprocesses:
        rules += [(path, _PROGRAMS) for path in _PROGRAM_DIRECTORIES]
        rules += [("/proc", _READ_ONLY), ("/dev/shm", READ + WRITE)]  # noqa: S108  pools keep their locks there
    return rules + _own(server, model, _PROGRAMS)


def temporary_directories() -> tuple[str, ...]:
    """Where models may leave temporary files at standard: the usual places, and the one that the server was told."""
    told = os.environ.get("TMPDIR", "")
    return (*TEMPORARY, told) if os.path.isabs(told) else TEMPORARY


def usual_caches(home: str) -> Iterator[str]:
    """Those of :func:`_caches` that libraries make below a directory for such things, or where the operator says."""
    for path in _caches(home):
        if not path.startswith(home + "/") or path.startswith((f"{home}/.cache/", f"{home}/.config/")):
            yield path


def exposed(server: ServerPlaces) -> list[str]:
    """What cannot be hidden at standard: it lies where every model may write."""
    open_to_all = {os.path.realpath(path) for path in temporary_directories()}
    places = (*server.repositories, os.path.dirname(server.bundle))
    return [path for path in places if any(_contains(top, path) for top in open_to_all)]


def _own(server: ServerPlaces, model: ModelPlaces, letters_of_directory: str) -> Rules:
    rules = [(path, _PROGRAMS) for path in (server.bundle, model.backend, *model.python) if path]
    rules += [(path, _PROGRAMS) for path in model.read]
    rules.append((model.directory, letters_of_directory))
    return rules + [(path, OWN) for path in (model.scratch, *model.write) if path]


def _hidden(server: ServerPlaces) -> set[str]:
    hidden = {os.path.realpath(path) for path in (*server.repositories, *server.private, *_SECRETS)}
    for repository in server.repositories:  # a model may lie elsewhere, with a link to it
        hidden.update(os.path.realpath(entry.path) for entry in _entries(repository) if entry.is_symlink())
    if server.home:
        hidden.update(_private_of_home(server.home))
    return hidden | {"/proc", "/sys", "/dev"}  # not hidden: they have rules of their own


def _private_of_home(home: str) -> Iterator[str]:
    """Keys, tokens, mail and settings lie in a home directory's hidden entries, and so do start-up files of shells."""
    shown = {name.partition("/")[0] for name in (*_OF_HOME, *_CACHES)}
    for entry in _entries(home):
        if entry.name.startswith(".") and entry.name not in shown:
            yield entry.path
    for parent in (".cache", ".config"):
        shown = {name.partition("/")[2] for name in _CACHES if name.startswith(f"{parent}/")}
        yield from (entry.path for entry in _entries(os.path.join(home, parent)) if entry.name not in shown)


def _beside(hidden: set[str], writable: Collection[str], as_root: bool) -> Iterator[tuple[str, str]]:
    """Everything that is not hidden: what lies beside the ways there, but for directories that are writable as a whole."""
    ways = {str(parent) for path in hidden for parent in Path(path).parents}
    if as_root:
        ways.update(("/etc", "/etc/ssl", "/etc/ssh", "/home", "/var", "/var/lib", "/var/log", "/var/spool", "/run"))
    for way in sorted(ways - hidden):
        if any(_contains(path, way) for path in (*hidden, *writable)):
            continue
        for entry in _entries(way):
            if entry.path in hidden or entry.path in ways or entry.is_symlink():
                continue  # a link needs no rule: what counts is where it leads
            if not as_root or _is_public(entry):
                yield entry.path, _PROGRAMS


def _is_public(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed == needed


def _no_models(repository: str) -> Iterator[str]:
    """What lies in a repository and is no model: models may share it."""
    for entry in _entries(repository):
        if entry.is_symlink() or entry.name.startswith("."):
            continue
        if not entry.is_dir() or not any(
            inner.name == "config.pbtxt" or inner.name.isdecimal() for inner in _entries(entry.path)
        ):
            yield entry.path


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _caches(home: str) -> Iterator[str]:
    for name in _CACHES if home else ():
        yield os.path.join(home, name)
    common = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(common):
        yield from (os.path.join(common, name.partition("/")[2]) for name in _CACHES if name.startswith(".cache/"))
    for variable in _CACHE_VARIABLES:
        path = os.environ.get(variable, "")
        if os.path.isabs(path) and path != "/":
            yield path


def _devices(more: Iterable[str], *, gpu: bool) -> Rules:
    rules = [(f"/dev/{name}", DEVICE) for name in (*_DEVICES, *more) if name != "shm"]
    if gpu:
        numbered = [entry.path for entry in _entries("/dev") if entry.name.removeprefix("nvidia").isdecimal()]
        rules += [(path, DEVICE) for path in (*numbered, *(f"/dev/{name}" for name in _GPU_DEVICES))]
        rules += [(path, _READ_ONLY) for path in _GPU_FILES]
    return rules


def _is_beside(path: str, hidden: set[str]) -> bool:
    """True if a path is readable as a whole, or not at all."""
    real = os.path.realpath(path)
    return real == "/" or not any(_contains(real, other) for other in hidden)


def _contains(directory: str, path: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
