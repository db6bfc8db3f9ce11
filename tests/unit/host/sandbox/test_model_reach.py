"""What keeps a user from a model's files, and the advice about it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pybackend.sandbox import model_reach
from pybackend.sandbox.file_access import Obstacle
from pybackend.sandbox.model_reach import Blocked, ModelReach, Needs, Part, given_user, separate_user
from pybackend_wire.installation import install_command

NUMBER = 1_879_000_000
OTHERS = separate_user(NUMBER, NUMBER)

NEEDS = Needs(
    directory=Path("/root/models/m"),
    version_directory=Path("/root/models/m/1"),
    model_file=Path("/root/models/m/1/model.py"),
    python=Path("/root/python/bin/python"),
    installations=(),
    packages=(),
    prefix=None,
    bundle="/root/.cache/stub",
    promised=(),
    repositories=("/root/models",),
    server=(),
    command="/opt/pybackend/bin/pybackend",
)


@pytest.fixture(autouse=True)
def system_python(tmp_path, monkeypatch):
    """A Python of the system, which all may run; also one that is too old."""
    path = tmp_path / "system"
    path.mkdir()
    monkeypatch.setattr(model_reach, "SYSTEM_PATH", str(path))
    for name in ("python3", "python3.8", "python3.11"):
        (path / name).write_bytes(b"")
        (path / name).chmod(0o755)
    return path / "python3.11"


@pytest.mark.parametrize(
    ("part", "unpacked", "advice"),
    [
        (Part.MODEL, False, "Move the models where all may enter, `mv /root/models /srv`"),
        (Part.PYTHON, False, "Install the server where all may enter, {install}"),
        (Part.ENVIRONMENT, False, "Make the environment where all may enter, below /srv"),
        (
            Part.ENVIRONMENT,
            True,
            "Have it unpacked where all may enter, `--environment-cache-directory=/var/cache/pybackend`",
        ),
        (Part.BUNDLE, False, "Set XDG_CACHE_HOME=/var/cache for the server"),
    ],
)
def test_opening_the_directory_of_root_is_the_last_advice(part, unpacked, advice, system_python):
    install = install_command(pip=f"{system_python} -m venv /opt/pybackend && /opt/pybackend/bin/pip")
    blocked = Blocked(Obstacle("/root", 0, on_way=True), part)
    reach = ModelReach(replace(NEEDS, is_unpacked=unpacked))
    assert reach.advice(blocked, OTHERS) == f"{advice.format(install=install)}. Or let it pass, `chmod o+x /root`"


def test_a_python_that_lies_in_the_same_closed_place_is_not_advised(tmp_path, system_python):
    """As where the system's is a link to that of root."""
    closed = tmp_path / "closed"
    closed.mkdir()
    system_python.rename(closed / "python")
    system_python.symlink_to(closed / "python")
    blocked = Blocked(Obstacle(str(closed), 0, on_way=True), Part.PYTHON)
    assert ModelReach(NEEDS).advice(blocked, OTHERS) == f"Let it pass, `chmod o+x {closed}`"


def test_a_directory_of_another_user_is_first_served_as_that_user():
    blocked = Blocked(Obstacle("/srv/anna", NUMBER, on_way=True), Part.MODEL)
    assert ModelReach(NEEDS).advice(blocked, OTHERS) == (
        f"Run the server as the user who owns it: `sudo -u '#{NUMBER}' /opt/pybackend/bin/pybackend serve /root/models`. "
        "Or move the models where all may enter, `mv /root/models /opt`, or let it pass, `chmod o+x /srv/anna`"
    )


def test_a_user_who_cannot_run_the_server_is_not_advised_to(tmp_path):
    tmp_path.chmod(0o700)
    blocked = Blocked(Obstacle("/srv/anna", NUMBER, on_way=True), Part.MODEL)
    reach = ModelReach(replace(NEEDS, server=[str(tmp_path / "bin" / "python")]))
    assert reach.advice(blocked, OTHERS) == (
        "Move the models where all may enter, `mv /root/models /opt`. Or let it pass, `chmod o+x /srv/anna`"
    )


def test_a_user_with_a_lasting_number_is_let_in_alone():
    user = given_user(1234, 1234)
    way, file = Obstacle("/home/a b", 0, on_way=True), Obstacle("/root/models/m/1/model.py", 0, on_way=False)
    assert ModelReach(NEEDS).advice(Blocked(way, Part.MODEL), user) == "Let it pass, `setfacl -m u:1234:x '/home/a b'`"
    assert ModelReach(NEEDS).advice(Blocked(file, Part.MODEL), user) == "Run `setfacl -R -m u:1234:rX /root/models/m/1`"


@pytest.mark.parametrize("closed", ["models/m", "models/m/1", "models/m/1/model.py", "python/bin/python", "packages"])
def test_everything_without_which_a_model_cannot_run_is_essential(tmp_path, closed):
    """Asked for a user who owns nothing there; the directories above the tree may be closed too, as pytest makes them."""
    for name in ("models/m/1", "python/bin", "packages", "stub"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("models/m/1/model.py", "python/bin/python"):
        (tmp_path / name).touch()
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)
    (tmp_path / closed).chmod(0)
    directory = tmp_path / "models" / "m"
    reach = ModelReach(
        replace(
            NEEDS,
            directory=directory,
            version_directory=directory / "1",
            model_file=directory / "1" / "model.py",
            python=tmp_path / "python/bin/python",
            installations=[str(tmp_path / "packages")],
            bundle=str(tmp_path / "stub"),
        )
    )
    owner = os.stat(tmp_path).st_uid
    blocked = reach.essential(given_user(owner, NUMBER).account)  # the owner's own bits are closed too
    assert blocked is not None
    assert blocked.place.path == str(tmp_path / closed)
    (tmp_path / closed).chmod(0o755)
    assert reach.essential(given_user(owner, NUMBER).account) is None
