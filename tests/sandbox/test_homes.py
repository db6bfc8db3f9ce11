"""A model's home: it stays, libraries write there what they like, and what the operator has downloaded is in it."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, OTHER_UID, ROOT_DIRECTORY, parameters, public_directory, public_python
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.server import ServerProcess
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

HUB = ".cache/huggingface/hub"
REPOSITORY = f"{HUB}/models--anna--words"

KEPT = """
import tempfile
for name in ("a", "b"):
    directory = os.path.expanduser("~/." + name + "/models")
    os.makedirs(directory, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=directory)
    os.write(descriptor, b"weights")
    os.rename(path, os.path.join(directory, "w"))
return out(OUT=text(os.path.expanduser("~")))
"""
"""As libraries do: a download that only its user may read, below a hidden directory of the home that is not there yet.
"""

FOUND = """
return out(OUT=text(*(open(os.path.expanduser("~/." + name + "/models/w")).read() for name in ("a", "b"))))
"""

HUGGING_FACE = """
directory = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
hub = os.path.join(directory, "hub", "models--anna--words")
found = [open(os.path.join(hub, "refs", "main")).read(), open(os.path.join(hub, "snapshots", "c1", "w")).read()]
os.makedirs(os.path.join(hub, "snapshots", "c2"))
with open(os.path.join(hub, "blobs", "b2"), "w") as file:
    file.write("newer")
os.symlink("../../blobs/b2", os.path.join(hub, "snapshots", "c2", "w"))
with open(os.path.join(hub, "refs", "main"), "w") as file:
    file.write("c2")
found.append(open(os.path.join(hub, "snapshots", "c2", "w")).read())
for secret in (os.path.join(directory, "token"), PLACE):
    try:
        found.append(open(secret).read())
    except OSError as error:
        found.append(type(error).__name__)
return out(OUT=text(*found))
"""
"""The cache holds a repository, which is brought up to date."""


@dataclass
class Place:
    """A repository, the home directory of the operator, and servers on them, one after the other."""

    base: Path
    is_root: bool
    python: str

    @property
    def home(self) -> Path:
        return self.base / "home"

    @contextmanager
    def server(self, *flags: str, **variables: str) -> Iterator[ServerProcess]:
        owner = {} if self.is_root or not IS_ROOT else {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
        environment = {**kept, "HOME": str(self.home), "XDG_CACHE_HOME": str(self.base / "cache"), **variables}
        if owner:
            subprocess.run(["chown", "-R", f"{OTHER_UID}:{OTHER_UID}", str(self.base)], check=True)
        server = ServerProcess(
            [self.base / "models"], *flags, python=[self.python], env=environment, cwd=str(ROOT_DIRECTORY), **owner
        )
        try:
            server.wait_ready()
            yield server
        finally:
            server.stop()


@pytest.fixture(params=["root", "user"])
def place(request) -> Iterator[Place]:
    if request.param == "root" and not IS_ROOT:
        pytest.skip("only root can start it")
    base = public_directory()
    try:
        (base / "home").mkdir()
        (base / "cache").mkdir()
        (base / "home").chmod(0o755)
        yield Place(base, request.param == "root", public_python(base))
    finally:
        shutil.rmtree(base, ignore_errors=True)


def said(answer) -> list[str]:
    assert answer.status == 200, answer.error
    return [each.decode() for each in answer["OUT"]]


def write_hub(directory: Path) -> None:
    """A cache of Hugging Face with one repository, and a token beside it."""
    hub = directory / "hub" / "models--anna--words"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("blobs", "refs", "snapshots/c1"):
        (hub / name).mkdir(parents=True)
    (hub / "blobs" / "b1").write_text("words")
    (hub / "refs" / "main").write_text("c1")
    (hub / "snapshots" / "c1" / "w").symlink_to("../../blobs/b1")
    (directory / "token").write_text("secret")
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_what_libraries_write_into_it_is_there_at_the_next_start(place):
    """For all instances of the model, and for no other model."""
    write_laboratory(place.base / "models", "first", "instance_group { kind: KIND_CPU count: 2 }")
    write_laboratory(place.base / "models", "second")
    with place.server() as server:
        (home,) = said(laboratory(server, "first")(KEPT))
        assert Path(home).is_relative_to(place.base / "cache")
        (other,) = said(laboratory(server, "second")("return out(OUT=text(os.path.expanduser('~')))"))
        assert other != home
        refused = laboratory(server, "second")(f"return out(OUT=text(open({home!r} + '/.a/models/w').read()))")
        assert "PermissionError" in refused.error
    assert not Path(other).exists(), "nothing was in it"
    with place.server() as server:
        for _ in range(4):
            assert said(laboratory(server, "first")(FOUND)) == ["weights", "weights"]


@pytest.mark.thorough
def test_a_killed_server_and_a_live_update_keep_it(place):
    models = place.base / "models"
    write_laboratory(models, "first")
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with place.server(*flags) as server:
        (home,) = said(laboratory(server, "first")(KEPT))
        write_laboratory(models, "first", 'parameters { key: "x" value: { string_value: "y" } }')
        assert server.request("POST", "/v2/repository/models/first/load").status == 200
        assert said(laboratory(server, "first")(FOUND)) == ["weights", "weights"]
        server.stop(signal.SIGKILL)
    with place.server(*flags) as server:
        assert said(laboratory(server, "first")("return out(OUT=text(os.path.expanduser('~')))")) == [home]
        assert said(laboratory(server, "first")(FOUND)) == ["weights", "weights"]


def test_a_new_process_that_takes_the_place_of_another_finds_its_files(place):
    write_laboratory(place.base / "models", "first", extra=parameters(RESTART_AFTER_REQUESTS="1"))
    with place.server() as server:
        assert said(laboratory(server, "first")(KEPT))
        server.wait_for(r"instance 'first_0[^']*' goes on in process")
        assert said(laboratory(server, "first")(FOUND)) == ["weights", "weights"]


@pytest.mark.parametrize("moved", [False, *thorough(True)])
def test_the_operators_downloads_of_hugging_face_are_in_it_without_the_token(place, moved):
    """In the usual place, or where a variable says, if the model's user may not write there."""
    directory = place.base / "shared" if moved else place.home / ".cache" / "huggingface"
    directory.mkdir(parents=True)
    write_hub(directory)
    (place.home / "data").mkdir()
    (place.home / "data" / "words").write_text("visible")
    write_laboratory(place.base / "models", "first")
    with place.server(**({"HF_HOME": str(directory)} if moved else {})) as server:
        found = said(laboratory(server, "first")(HUGGING_FACE.replace("PLACE", repr(str(directory / "token")))))
        # A server that shares its user lets models use the place that it was told, with all that is there.
        in_place = moved and not place.is_root
        assert found[:3] == ["c1", "words", "newer"]
        assert found[3:] == [
            "secret" if in_place else "FileNotFoundError",
            "secret" if moved else "PermissionError",  # whoever names a place in public has the token there, too
        ]
        assert (directory / "hub/models--anna--words/snapshots/c2").exists() == in_place
        if not place.is_root:
            code = "return out(OUT=text(open(os.path.expanduser('~/data/words')).read()))"
            assert said(laboratory(server, "first")(code)) == ["visible"]


def test_a_closed_cache_is_no_reason_to_fail(place):
    """As ``/root`` is in most containers: the variable would lead where the model cannot go."""
    if not place.is_root:
        pytest.skip("the server's user may go there")
    closed = place.base / "closed"
    closed.mkdir(mode=0o700)
    write_hub(place.home / ".cache" / "huggingface")
    place.home.chmod(0o700)
    write_laboratory(place.base / "models", "first")
    with place.server(HF_HOME=str(closed / "huggingface")) as server:
        server.wait_for(f"Models download into their own home directories, .* because of {place.home}")
        code = "return out(OUT=text(os.environ.get('HF_HOME', 'none')))"
        assert said(laboratory(server, "first")(code)) == ["none"]
        assert said(laboratory(server, "first")(KEPT))


def test_the_hint_works_at_the_first_try(place):
    """Whoever writes what the log says need not create the directory."""
    if place.is_root:
        place.home.chmod(0o777)
    kept = place.home / "kept"
    write_laboratory(place.base / "models", "first")
    code = f"os.makedirs({str(kept / 'deep')!r})\nopen({str(kept / 'deep' / 'file')!r}, 'w').close()\nreturn out(OUT=text('x'))"
    with place.server() as server:
        assert "PermissionError" in laboratory(server, "first")(code).error
        told = server.wait_for(
            r"sandbox of 'first_0[^']*': .* Set SANDBOX_WRITE to \\\"(.*?)\\\" in the model's parameters"
        )[1]
        assert told == str(kept)
    write_laboratory(place.base / "models", "first", parameters(SANDBOX_WRITE=told))
    with place.server() as server:
        assert said(laboratory(server, "first")(code)) == ["x"]
    assert (kept / "deep" / "file").exists()


def test_the_hint_repeats_nothing_that_is_set(place):
    """A directory that could not be created at load has to be created first; the client hears of the sandbox."""
    if place.is_root:
        place.home.chmod(0o777)
    kept, link = place.home / "kept", place.home / "link"
    link.symlink_to(place.home)
    write_laboratory(place.base / "models", "first", parameters(SANDBOX_WRITE=f"{link}/kept"))
    with place.server() as server:
        server.wait_for(r"SANDBOX_WRITE names .*/link/kept, which does not exist and cannot be")
        reply = laboratory(server, "first")(f"os.makedirs({str(kept)!r})\nreturn out(OUT=text('x'))")
        assert "(the model's sandbox refused this: the server's log says how to allow it)" in reply.error
        server.wait_for(rf"sandbox of 'first_0[^']*': .* names {kept}, which did not exist .*: create the directory")
        assert "Set SANDBOX_WRITE to" not in server.output


def test_a_user_site_of_the_servers_python_stays(place):
    """Packages that were installed with ``pip install --user`` are below the home directory of the server's user."""
    write_laboratory(place.base / "models", "first", parameters(ZYGOTE="no"))
    with place.server() as server:
        code = "import site; return out(OUT=text(site.getuserbase()))"
        assert said(laboratory(server, "first")(code)) == [str(place.home / ".local")]
