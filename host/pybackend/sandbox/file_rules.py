"""Rules for the files that a model's process may reach, at both levels, as pairs of a path and access letters.

Landlock knows only permissions, and each applies to a path and everything below. So "everything except" becomes a list
of the entries beside each path that leads to a hidden place. Entries created there later are hidden too, until the
process is restarted.
"""

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pybackend.gpus import NO_GPU, GpuAccess
from pybackend_wire.confinement import DEVICE, EXECUTE, LIST, READ, WRITE

Rules = list[tuple[str, str]]

_MOST_MODELS = 100_000
_GRAIN_NS = 2_000_000_000
"""Coarser than the clock of any usual file system."""

_models: dict[str, tuple[int, int, int]] = {}
"""Directories of models: device, inode and time of the last change when they were judged."""

_READ_ONLY, _PROGRAMS, OWN = READ, READ + EXECUTE, READ + EXECUTE + WRITE

_DEVICES = ("null", "zero", "full", "random", "urandom")
"""No terminals: a model could read the operator's input, and a new terminal cannot be told from the operator's."""

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

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  models may use them at standard, like other programs

_SECRETS = ("/run/secrets", "/var/run/secrets")
"""Directories where containers find their passwords and tokens."""

_OF_HOME = (".local", ".pyenv", ".conda", ".asdf", ".nvm", ".cargo", ".rustup", ".nix-profile", "nltk_data", ".fonts")
"""Hidden entries of a home directory that hold programs and data; the others hold keys and private files."""

_HUGGING_FACE_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")

_CACHE_VARIABLES = (
    *_HUGGING_FACE_VARIABLES, "HF_DATASETS_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "KERAS_HOME", "NLTK_DATA", "JOBLIB_CACHE_DIR",
    "SENTENCE_TRANSFORMERS_HOME", "SCIKIT_LEARN_DATA", "TFDS_DATA_DIR", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "VLLM_CACHE_ROOT",
)  # fmt: skip
"""Environment variables by which an operator names a directory for what libraries keep."""

HUGGING_FACE_HUB = ".cache/huggingface/hub"
"""Below a home directory. Beside it lie tokens, which models do not reach."""

_SHARED = (HUGGING_FACE_HUB, ".cache/torch/hub/checkpoints")
"""Hidden parts of the operator's home directory that models may read: weights that libraries have downloaded."""

_DATA_OF_HOME = ("nltk_data", "scikit_learn_data", "tensorflow_datasets", "stanza_resources", "gensim-data")
"""Visible entries of a home directory to which libraries add."""


@dataclass(frozen=True)
class ServerPlaces:
    """The server's places on disk."""

    repositories: tuple[str, ...]
    private: tuple[str, ...]  # the server's own directories, which no model may reach
    bundle: str
    home: str  # home directory of the server's user, "" for none
    working_directory: str  # the server's, which models inherit
    environments: tuple[str, ...] = ()  # directories for unpacked environments of models, hidden like the others


@dataclass(frozen=True)
class ModelPlaces:
    """The places that one process of a model needs; ``beside`` are the directories of models that live in it, too."""

    directory: str
    python: tuple[str, ...]
    backend: str = ""
    scratch: str = ""
    beside: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    home: str = ""
    shared: tuple[str, ...] = ()  # directories of the operator's that it may read although they are hidden
    gpu: GpuAccess = NO_GPU
    subprocesses: bool = True
    network: bool = True


def standard_rules(server: ServerPlaces, model: ModelPlaces, *, as_root: bool) -> Rules:
    """Make the rules for ``standard``: the system, a model's own files, caches and temporary files.

    Args:
        as_root: whether the process keeps the superuser's id, which can read even files that others cannot.
    """
    hidden = hidden_places(server) | {"/proc", "/sys", "/dev"}  # the last three have separate rules
    writable = [os.path.realpath(path) for path in temporary_directories()]
    rules = list(_beside(hidden, writable, as_root))
    rules += [(path, _PROGRAMS) for repository in server.repositories for path in _no_models(repository)]
    rules += [("/proc", _READ_ONLY), *((path, _READ_ONLY) for path in _SYSTEM_STATE)]
    rules += _devices(model.gpu)
    rules += [(path, OWN) for path in (*writable, *chosen_caches().values())]
    rules += [(path, _READ_ONLY) for path in model.shared]
    real = os.path.realpath(server.working_directory)
    if real != "/" and any(contains(real, other) for other in hidden):  # neither hidden nor readable as a whole
        rules.append((server.working_directory, LIST))  # otherwise modules in it would not be found
    return rules + _own(server, model, OWN)


def strict_rules(server: ServerPlaces, model: ModelPlaces) -> Rules:
    """Make the rules for ``strict``: the least that a model needs to run, and the paths that it declares."""
    rules: Rules = [(path, _PROGRAMS) for path in _LIBRARIES]
    rules += [(path, _READ_ONLY) for path in _FACTS]
    rules += _devices(model.gpu)
    if model.network:
        rules += [(path, _READ_ONLY) for path in _NAME_LOOKUP]
    if model.subprocesses:
        rules += [(path, _PROGRAMS) for path in _PROGRAM_DIRECTORIES]
        rules += [("/proc", _READ_ONLY), ("/dev/shm", READ + WRITE)]  # noqa: S108  process pools keep locks there
    return rules + _own(server, model, _PROGRAMS)


def resolved(rules: Iterable[Sequence[str]]) -> Rules:
    """Resolve links and merge rules for the same path. Processes follow no links: their author could redirect them."""
    joined: dict[str, set[str]] = {}
    for path, letters in rules:
        real = path if contains("/proc", path) else os.path.realpath(path)
        joined.setdefault(real, set()).update(letters)
    return [(path, "".join(sorted(letters))) for path, letters in joined.items()]


def temporary_directories() -> tuple[str, ...]:
    """Return the directories for temporary files at ``standard``: the usual ones, and the server's TMPDIR."""
    told = os.environ.get("TMPDIR", "")
    return (*TEMPORARY, told) if os.path.isabs(told) else TEMPORARY


def chosen_caches() -> dict[str, str]:
    """Return the directories that the operator names for what libraries keep, by environment variable."""
    told = {variable: os.environ.get(variable, "") for variable in _CACHE_VARIABLES}
    return {variable: path for variable, path in told.items() if os.path.isabs(path) and path != "/"}


def hugging_face_hub(variable: str, path: str) -> str:
    """Return the place of downloaded weights that a variable chooses, ``""`` if it is about something else."""
    if variable not in _HUGGING_FACE_VARIABLES:
        return ""
    return os.path.join(path, "hub") if variable == "HF_HOME" else path


def shared_caches(home: str) -> Iterator[tuple[str, str]]:
    """Return directories of the operator's that models may read, each with its place in a home directory."""
    for name in _SHARED if home else ():
        path = os.path.join(home, name)
        if os.path.isdir(path):
            yield path, name


def visible_entries(home: str) -> Iterator[tuple[str, bool]]:
    """Return what is not hidden in a home directory, and whether libraries may add to it."""
    for entry in _entries(home) if home else ():
        if not entry.name.startswith("."):
            yield entry.path, entry.name in _DATA_OF_HOME


def exposed(server: ServerPlaces) -> list[str]:
    """Return the places that cannot be hidden at ``standard`` because they lie where every model may write.

    Places inside another one of them are left out.
    """
    open_to_all = {os.path.realpath(path) for path in temporary_directories()}
    places = (*server.repositories, os.path.dirname(server.bundle), *server.environments)
    found = [path for path in dict.fromkeys(places) if any(contains(top, path) for top in open_to_all)]
    return [path for path in found if not any(path != top and contains(top, path) for top in found)]


def is_open_to_models(path: Path) -> bool:
    """Whether models at ``standard`` may read and write where a path lies: no rule hides it there."""
    open_to_all = (*temporary_directories(), *chosen_caches().values())
    return any(contains(os.path.realpath(top), os.path.realpath(path)) for top in open_to_all)


def _own(server: ServerPlaces, model: ModelPlaces, letters_of_directory: str) -> Rules:
    rules = [(path, _PROGRAMS) for path in (server.bundle, model.backend, *model.python) if path]
    rules += [(path, _PROGRAMS) for path in model.read]
    rules += [(path, letters_of_directory) for path in (model.directory, *model.beside)]
    return rules + [(path, OWN) for path in (model.scratch, model.home, *model.write) if path]


def hidden_places(server: ServerPlaces) -> set[str]:
    """Return the places that no model may reach, except for those that belong to it."""
    hidden = {
        os.path.realpath(path) for path in (*server.repositories, *server.private, *server.environments, *_SECRETS)
    }
    for repository in server.repositories:  # a link in a repository may point to a model elsewhere
        hidden.update(os.path.realpath(entry.path) for entry in _entries(repository) if entry.is_symlink())
    if server.home:
        hidden.update(_private_of_home(server.home))
    return hidden


def _private_of_home(home: str) -> Iterator[str]:
    """Return hidden entries of a home directory: keys, tokens, mail, settings, and start-up files of shells."""
    for entry in _entries(home):
        if entry.name.startswith(".") and entry.name not in _OF_HOME:
            yield entry.path


def _beside(hidden: set[str], writable: Collection[str], as_root: bool) -> Iterator[tuple[str, str]]:
    """Return all entries beside the paths to hidden places, except below directories that are writable as a whole."""
    ways = {str(parent) for path in hidden for parent in Path(path).parents}
    if as_root:
        ways.update(("/etc", "/etc/ssl", "/etc/ssh", "/home", "/var", "/var/lib", "/var/log", "/var/spool", "/run"))
    for way in sorted(ways - hidden):
        if any(contains(path, way) for path in (*hidden, *writable)):
            continue
        for entry in _entries(way):
            if entry.path in hidden or entry.path in ways or entry.is_symlink():
                continue  # a link needs no rule: the place it leads to has one or not
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
    """Return the entries of a repository that are not models; models may share them."""
    for entry in _entries(repository):
        if entry.is_symlink() or entry.name.startswith("."):
            continue
        if not entry.is_dir() or not _is_still_model(entry):
            yield entry.path


def _is_still_model(entry: os.DirEntry[str]) -> bool:
    """:func:`is_model`, which remembers directories: each instance of each model asks about all of them.

    Only positive answers are kept, so that no model's directory is ever taken for a shared one. One that has just
    changed is judged again, because a second change within the clock's grain would not show.
    """
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    stamp = (status.st_dev, status.st_ino, status.st_mtime_ns)
    if _models.get(entry.path) == stamp:
        return True
    if not is_model(entry.path):
        return False
    if len(_models) >= _MOST_MODELS:
        _models.clear()
    if time.time_ns() - status.st_mtime_ns > _GRAIN_NS:
        _models[entry.path] = stamp
    return True


def is_model(directory: str) -> bool:
    """Whether a directory of a repository belongs to a model, judging by the names in it."""
    return any(inner.name == "config.pbtxt" or inner.name.isdecimal() for inner in _entries(directory))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _devices(gpu: GpuAccess) -> Rules:
    rules = [(f"/dev/{name}", DEVICE) for name in _DEVICES]
    rules += [(path, DEVICE) for path in gpu.files]
    if gpu.files:
        rules += [(path, _READ_ONLY) for path in _GPU_FILES]
    if gpu.libraries:
        rules.append((gpu.libraries, _PROGRAMS))
    return rules


def contains(directory: str, path: str) -> bool:
    """Whether a path is a directory or lies below it, judging by names alone."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
