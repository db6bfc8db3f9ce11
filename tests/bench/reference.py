"""The reference server: Triton with its Python backend, taken from the nvidia-pytriton wheel and run without PyTriton.

The wheel carries the server program, the Python backend and one stub program per CPython version, but in folders that
the server would not look into. This module installs the wheel into a virtual environment of its own, once, puts the
backend together, and says with what command and environment the server starts on a plain model repository.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

WHEEL = "nvidia-pytriton==0.7.0"
# The stubs of that wheel were built against numpy 1.x.
NUMPY = "numpy<2"
CACHE_VARIABLE = "PYBACKEND_BENCH_CACHE"
PYTHON_VARIABLE = "PYBACKEND_BENCH_PYTHON"
INSTALL_TIMEOUT_S = 1800

_PROBE = """
import sys, sysconfig
print("%d.%d" % sys.version_info[:2])
print(sysconfig.get_config_var("LIBDIR"))
print(sysconfig.get_config_var("Py_ENABLE_SHARED") or 0)
print(sysconfig.get_paths()["purelib"])
"""


class ReferenceUnavailableError(Exception):
    """The reference server cannot be had on this machine; the text says why and what would help."""


@dataclass(frozen=True)
class ReferenceInstallation:
    """Where the reference server lies, and what it needs to start.

    Attributes:
        program: the server's executable.
        backends: the directory to pass as ``--backend-directory``.
        environment: the whole environment the server is started with.
    """

    program: Path
    backends: Path
    environment: dict[str, str]


def cache_directory() -> Path:
    """The directory that keeps the reference server between runs; ``PYBACKEND_BENCH_CACHE`` moves it."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "pybackend-bench"


def install(cache: Path) -> ReferenceInstallation:
    """Return the reference server kept under ``cache``, installing it first where it is missing.

    Raises:
        ReferenceUnavailableError: no fitting Python, no such wheel for this platform, or no package index in reach.
    """
    base = cache / WHEEL.replace("==", "-")
    venv = base / "venv"
    complete = base / ".complete"
    if not complete.exists():
        print(f"installing the reference server ({WHEEL}) into {base}; this happens once", file=sys.stderr, flush=True)
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        _create_environment(venv)
    version, libdir, site = _probe(venv / "bin" / "python")
    bundled = site / "pytriton" / "tritonserver"
    if not complete.exists():
        _assemble_backend(bundled, base / "backends", version)
        complete.touch()
    environment = {
        "HOME": str(Path.home()),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PATH": f"{venv / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        # libpython must be the one of the environment's own interpreter: the stub embeds it, and the library of
        # another patch release starts but fails later in odd places.
        "LD_LIBRARY_PATH": f"{site / 'nvidia_pytriton.libs'}:{libdir}",
        # The embedded interpreter does not know about the virtual environment: this is how it finds numpy.
        "PYTHONPATH": str(site),
    }
    return ReferenceInstallation(bundled / "bin" / "tritonserver", base / "backends", environment)


def command(
    installation: ReferenceInstallation, repository: Path, http_port: int, metrics_port: int, grpc_port: int | None
) -> list[str]:
    """The command that serves ``repository`` over HTTP, with metrics, and with gRPC if a port for it is given."""
    grpc = ["--allow-grpc=false"] if grpc_port is None else ["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"]
    return [
        str(installation.program),
        f"--model-repository={repository}",
        f"--backend-directory={installation.backends}",
        "--http-address=127.0.0.1",
        f"--http-port={http_port}",
        f"--metrics-port={metrics_port}",
        *grpc,
    ]


def _create_environment(venv: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    _run([python, "-m", "venv", str(venv)], f"{python} cannot make a virtual environment")
    _probe(venv / "bin" / "python")  # an interpreter that does not fit is refused before the long download
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, WHEEL, NUMPY], f"{WHEEL} could not be installed (Linux x86-64 and a package index are needed)")


def _probe(python: Path) -> tuple[str, str, Path]:
    """Ask an interpreter for its version, the directory of its libpython, and its site-packages."""
    version, libdir, shared, site = _run([str(python), "-c", _PROBE], f"{python} does not run").split()
    if shared != "1":
        raise ReferenceUnavailableError(
            f"the reference server's stub needs a Python with a shared libpython, which {python} does not have; "
            f"name one in {PYTHON_VARIABLE} (CPython 3.8 to 3.13, e.g. Debian's python3 or one built by pyenv with "
            "PYTHON_CONFIGURE_OPTS=--enable-shared)"
        )
    return version, libdir, Path(site)


def _assemble_backend(bundled: Path, backends: Path, version: str) -> None:
    stub = bundled / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        found = sorted(p.name for p in stub.parent.parent.glob("*"))
        raise ReferenceUnavailableError(
            f"{WHEEL} has no stub for CPython {version}, only for {', '.join(found)}; name another in {PYTHON_VARIABLE}"
        )
    shutil.copytree(bundled / "backends" / "python", backends / "python")
    target = backends / "python" / stub.name
    shutil.copyfile(stub, target)
    target.chmod(0o755)


def _run(command_line: list[str], complaint: str) -> str:
    try:
        done = subprocess.run(command_line, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReferenceUnavailableError(f"{complaint}: {error}") from error
    if done.returncode != 0:
        raise ReferenceUnavailableError(f"{complaint}: {done.stderr.strip()[-600:]}")
    return done.stdout
