"""The Python of a model's environment is as little trusted as the model: it is confined before it runs anything."""

import glob
import json
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import arena
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

AT_START = """
import json, os
def tried(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
said = {"uid": os.getuid(), "secret": tried(SECRET), "status": tried("/proc/self/status")}
for place in (os.environ.get("TMPDIR", "/tmp"), "/tmp"):
    try:
        with open(MARK.replace("/tmp", place), "a") as file:
            file.write(json.dumps(said) + "\\n")
        break
    except OSError:
        continue
"""


@pytest.mark.parametrize(
    ("kind", "level"), [("root", "standard"), *thorough(("root", "strict"), ("user", "standard"), ("user", "strict"))]
)
@pytest.mark.thorough
def test_what_it_runs_first_is_confined(environment, kind, level):
    directory, packages = environment
    mark = Path(f"/tmp/pybackend-first-{level}-{kind}-{directory.parent.name}")
    options = {"SANDBOX": level, "EXECUTION_ENV_PATH": str(directory)}
    (packages / "first.pth").write_text("import first\n")
    (packages / "first.py").write_text(f"SECRET = {str(packages / 'hidden')!r}\nMARK = {str(mark)!r}\n{AT_START}")
    try:
        with arena(kind, models={"victim": options}) as host:
            secret = host.context["secret"]
            code = (packages / "first.py").read_text().replace(str(packages / "hidden"), secret)
            (packages / "first.py").write_text(code)
            host.server.wait_ready()
            host.context["honest"] = True
            said = host.ask("victim", ["starts_threads", "writes_temporary_files"])
            assert set(said["results"].values()) == {""}
            assert host.server.get("/v2/models/victim/sandbox").json["level"] == level
            rooms = ("/run/pybackend/**", f"{host.context['home']}/.cache/pybackend/rooms/**", "/tmp")
            shown = [Path(path) for room in rooms for path in glob.glob(f"{room}/{mark.name}", recursive=True)]
            assert shown, "nothing was run first: this test shows nothing"
            for line in shown[0].read_text().splitlines():
                first = json.loads(line)
                assert first["secret"] == "PermissionError"
                assert first["uid"] == said["uid"]
                assert "Seccomp:\t2" in first["status"]
                assert "NoNewPrivs:\t1" in first["status"]
    finally:
        mark.unlink(missing_ok=True)
