"""What libraries keep to themselves and is used all the same: each row of one table, and none beside it.

Any release of a library may change such a name, and a use that nothing calls any more may fail in silence. So each row
says what it is needed for, and what it must do; where the library is not installed here, another target of the Makefile
runs the row.
"""

import ast
import dis
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("host", "stub", "sdk", "examples", "deploy", "docs")
OURS = ("pybackend", "triton_python_backend_utils")

DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_exit", "_getframe", "_current_frames"}
"""Names that begin with an underscore and are public."""


def found(name: str) -> Any:
    """The object that a name of a module or below it leads to."""
    for depth in range(name.count("."), 0, -1):
        module, *rest = name.rsplit(".", name.count(".") - depth + 1)
        try:
            value = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for part in ".".join(rest).split("."):
            value = getattr(value, part)
        return value
    return importlib.import_module(name)


def exists(name: str) -> Callable[[], bool]:
    return lambda: found(name) is not None


def takes(name: str, *arguments: Any, **named: Any) -> Callable[[], bool]:
    """It can be called so."""
    return lambda: bool(inspect.signature(found(name)).bind(*arguments, **named))


def attributes_of(source: Any, holder: str) -> set[str]:
    """What a module or class asks of ``self.<holder>``."""
    tree = ast.parse(inspect.getsource(source))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == holder
    }


def uvicorn_asks_no_more_of_its_transport() -> bool:
    from uvicorn.protocols.http import flow_control, httptools_impl

    asked = attributes_of(httptools_impl, "transport") | attributes_of(flow_control, "_transport")
    asked -= {"set_protocol"}  # for upgrades, of which it never hears
    return asked <= {"get_extra_info", "write", "pause_reading", "resume_reading", "is_closing", "close"}


def uvicorn_keeps_its_tasks() -> bool:
    from uvicorn.server import ServerState

    return isinstance(ServerState().tasks, set)


def threads_end_after_what_is_registered() -> bool:
    program = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (ended.wait(), print('thread'))).start()\n"
        "threading._register_atexit(lambda: (print('registered'), ended.set()))\n"
    ).replace("\natexit", "\nended = threading.Event()\natexit", 1)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split() == ["registered", "thread", "atexit"]


def a_lock_is_given_up_however_often_it_is_held() -> bool:
    lock = threading.RLock()
    with lock, lock:
        held = lock._release_save()
        is_free = not lock._is_owned()
        lock._acquire_restore(held)
        return is_free and lock._is_owned()


def flags_are_found_by_name() -> bool:
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument_group("group").add_argument("--flag", metavar="VALUE")
    return parser._option_string_actions["--flag"].metavar == "VALUE"


def compiled_files_have_python_s_own_header() -> bool:
    import _frozen_importlib_external
    import _imp

    magic = _frozen_importlib_external.MAGIC_NUMBER
    own = _imp.source_hash(int.from_bytes(magic, "little"), b"x = 1")
    return (magic, own) == (importlib.util.MAGIC_NUMBER, importlib.util.source_hash(b"x = 1"))


def huffman_codes_are_those_of_rfc_7541() -> bool:
    from hpack.huffman_constants import REQUEST_CODES_LENGTH
    from hpack.huffman_table import decode_huffman

    text = decode_huffman(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff"))  # appendix C.4.1
    return len(REQUEST_CODES_LENGTH) == 257 and REQUEST_CODES_LENGTH[48] == 5 and text == b"www.example.com"


def conda_pack_writes_its_scripts_by_what_is_overridden() -> bool:
    from conda_pack.core import Packer

    takes("conda_pack.core.Packer._write_text_file", None, "name", "text", executable=True)()
    return "_write_text_file" in {each.argval for each in dis.get_instructions(Packer.finish)}


def fastapi_remembers_functions_there() -> bool:
    import fastapi.dependencies.models

    return any(hasattr(function, "cache_clear") for function in vars(fastapi.dependencies.models).values())


@dataclass(frozen=True)
class Use:
    """One name, with dots before it if it is an attribute of an object."""

    name: str
    purpose: str
    holds: Callable[[], bool]
    library: str = ""  # to be installed, if it is not the standard library

    def complaint(self) -> str:
        """The sentence for a developer whose library has changed."""
        used = f"Python {sys.version.split()[0]}"
        if self.library:
            distribution = packages_distributions().get(self.library, [self.library])[0]
            used = f"{distribution} {version(distribution)}"
        return (
            f"{used} has changed {self.name.lstrip('.')}, which is not its public interface and by which {self.purpose}: find another way, "
            "or refuse this version in pyproject.toml"
        )


MARKS = {
    "ray": pytest.mark.ray,
    "torch": pytest.mark.torch,
    "lightgbm": pytest.mark.thorough,
    "xgboost": pytest.mark.thorough,
}
"""Of libraries that other targets of the Makefile install, or that take seconds to import."""

USES = [
    Use("threading._register_atexit", "servers in a program end before it waits for its threads", threads_end_after_what_is_registered),
    Use("._release_save", "a model's file imports libraries without the model's own modules", a_lock_is_given_up_however_often_it_is_held),
    Use("._acquire_restore", "a model's file imports libraries without the model's own modules", a_lock_is_given_up_however_often_it_is_held),
    Use("._is_owned", "a model's file imports libraries without the model's own modules", a_lock_is_given_up_however_often_it_is_held),
    Use("._option_string_actions", "a wrong flag's form, and the flag that was meant, are named", flags_are_found_by_name),
    Use("sys._base_executable", "`pybackend pack` finds the interpreter behind an environment", lambda: Path(sys._base_executable).exists()),
    Use("_imp, _frozen_importlib_external", "`pybackend pack` compiles modules", compiled_files_have_python_s_own_header),
    Use("hpack.huffman_constants", "header blocks are decompressed", huffman_codes_are_those_of_rfc_7541, "hpack"),
    Use("uvicorn.protocols.http.httptools_impl: the transport", "uvicorn answers requests of connections that are not its own",
        uvicorn_asks_no_more_of_its_transport, "uvicorn"),
    Use("uvicorn.protocols.http.httptools_impl: arguments", "uvicorn answers requests of connections that are not its own",
        takes("uvicorn.protocols.http.httptools_impl.HttpToolsProtocol", "config", "server_state", "app_state"), "uvicorn"),
    Use("uvicorn.protocols.http.httptools_impl: shutdown", "uvicorn's requests end with the server",
        exists("uvicorn.protocols.http.httptools_impl.HttpToolsProtocol.shutdown"), "uvicorn"),
    Use("uvicorn.server.ServerState", "uvicorn's requests end with the server", uvicorn_keeps_its_tasks, "uvicorn"),
    Use("fastapi.dependencies.models", "a server that has ended leaves memory", fastapi_remembers_functions_there, "fastapi"),
    Use("conda_pack.core.Packer._write_text_file", "an archive gets conda-unpack", conda_pack_writes_its_scripts_by_what_is_overridden, "conda_pack"),
    Use("conda_pack.core.File", "files are relocated", takes("conda_pack.core.File", "source", "target", is_conda=False, file_mode="text",
        prefix_placeholder=None), "conda_pack"),
    Use("conda_pack.prefixes.replace_prefix", "an environment's own files are told from conda's",
        takes("conda_pack.prefixes.replace_prefix", b"data", "text", "placeholder", "prefix"), "conda_pack"),
    Use("lightgbm.basic._LIB", "backend fil predicts", exists("lightgbm.basic._LIB.LGBM_BoosterPredictForMat"), "lightgbm"),
    Use("._handle", "backend fil predicts", lambda: "self._handle" in inspect.getsource(found("lightgbm.basic.Booster.__init__")), "lightgbm"),
    Use("xgboost.libpath.find_lib_path", "backend fil predicts", lambda: bool(found("xgboost.libpath.find_lib_path")()), "xgboost"),
    Use("torch._inductor", "backend pytorch loads compiled packages", exists("torch._inductor.aoti_load_package"), "torch"),
    Use("torch.utils._pytree", "backend pytorch passes nested inputs", exists("torch.utils._pytree.tree_unflatten"), "torch"),
    *[
        Use(f"._{name}", "parameters of backend pytorch switch the executor of TorchScript", exists(f"torch._C._{name}"), "torch")
        for name in ("set_graph_executor_optimize", "jit_set_profiling_executor", "jit_set_profiling_mode",
                     "jit_set_texpr_fuser_enabled")
    ],
    Use("torch._C", "parameters of backend pytorch switch the executor of TorchScript", exists("torch._C"), "torch"),
    Use("ray._raylet", "servers of one application share a key", exists("ray._raylet.AuthenticationTokenLoader.get_raw_token"), "ray"),
    Use("ray._private.state", "an update knows whether machines have room",
        exists("ray._private.state.available_resources_per_node"), "ray"),
]  # fmt: skip


@pytest.mark.parametrize("use", [pytest.param(use, id=use.name, marks=MARKS.get(use.library, ())) for use in USES])
def test_what_a_library_keeps_to_itself_is_as_it_was(use):
    if use.library:
        pytest.importorskip(use.library)
    try:
        holds = use.holds()
    except (AttributeError, ImportError, LookupError, TypeError) as error:
        raise AssertionError(f"{use.complaint()} ({error!r})") from error
    assert holds, use.complaint()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


class Scan:
    """The private names in all sources: those that they give, and those that they use."""

    def __init__(self) -> None:
        self.given: set[str] = set()  # to anything
        self.methods: set[str] = set()
        self.read: set[str] = set()  # by their names alone
        self.of_modules: set[str] = set()  # by dotted names
        self._modules: dict[str, str] = {}
        for directory in SOURCES:
            for path in python_files(ROOT / directory):
                self._modules = {}
                for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
                    self._see(node)

    def _see(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(attr=attr) if is_private(attr):
                self._see_attribute(node)
            case ast.Name(id=name) if is_private(name):
                (self.given if isinstance(node.ctx, ast.Store) else self.read).add(name)
            case ast.Import(names=names):
                whole = {each.asname: each.name for each in names if each.asname}
                self._modules |= whole | {
                    each.name.split(".")[0]: each.name.split(".")[0] for each in names if not each.asname
                }
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith((*OURS, "_typeshed")):
                self._see_import(module, names)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.given.add(name)
            case ast.ClassDef(name=name, body=body):
                self.given.add(name)
                functions = [each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                self.methods.update(filter(is_private, functions))
            case ast.Assign(targets=[ast.Name(id="__slots__")]):
                self.given.update(each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=name), ast.Constant(value=str(attr)), *_]) if (
                is_private(attr) and name in self._modules
            ):
                self.of_modules.add(f"{self._modules[name]}.{attr}")

    def _see_import(self, module: str, names: list[ast.alias]) -> None:
        self._modules |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
        private = [each.name for each in names if is_private(each.name)]
        self.given.update(private)
        self.of_modules.update(
            [module] if any(map(is_private, module.split("."))) else [f"{module}.{name}" for name in private]
        )

    def _see_attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store):
            self.given.add(node.attr)
        elif isinstance(node.value, ast.Name) and node.value.id in self._modules:
            self.of_modules.add(f"{self._modules[node.value.id]}.{node.attr}")
        else:
            self.read.add(node.attr)


def python_files(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(set(directories) - {"node_modules", "__pycache__"})
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))


@pytest.fixture(scope="module")
def scan() -> Scan:
    return Scan()


def test_no_other_private_name_of_a_library_is_used(scan):
    used = scan.of_modules | {f".{name}" for name in scan.read - scan.given}
    tabled = [use.name for use in USES]
    unknown = [name for name in sorted(used) if not any(f"{name}.".startswith(f"{each}.") for each in tabled)]
    assert unknown == [], f"write a row of USES for each, or use a public name: {unknown}"


def test_no_private_method_of_a_library_is_overridden_beside_the_table(scan):
    """A method with a private name that nothing here calls is called by a base of its class."""
    assert scan.methods - scan.read <= {use.name.rpartition(".")[2] for use in USES}
