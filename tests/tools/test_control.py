"""``pybackend load``, ``unload`` and ``status`` against a running server."""

import json

from tests.support.repositories import IDENTITY, PREAMBLE, identity_config, write_model
from tests.support.served import served


@served(flags=("--model-control-mode=explicit",))
def server(repository):
    for name in ("a", "untouched"):
        write_model(repository, name, IDENTITY, identity_config())
    write_model(repository, "broken", "raise ValueError('no weights')", identity_config())


def test_load_status_and_unload(pybackend, server, tmp_path):
    url = f"--url={server.url}"
    done = pybackend("load", "a", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "MODEL  VERSION  STATE  REASON\na      1        READY  -\n"
    (tmp_path / "config.json").write_text(json.dumps({"backend": "python", **TENSORS}))
    (tmp_path / "model.py").write_text(PREAMBLE + IDENTITY)
    files = (f"--config={tmp_path}/config.json", f"--file=2/model.py={tmp_path}/model.py")
    done = pybackend("load", "brought", *files, "--json", url)
    assert json.loads(done.stdout) == [{"name": "brought", "version": "2", "state": "READY"}]
    done = pybackend("load", "broken", url)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: "
    )
    rows = [line.split(maxsplit=3) for line in pybackend("status", url).stdout.splitlines()]
    assert [row[:3] for row in rows] == [
        ["MODEL", "VERSION", "STATE"],
        ["a", "1", "READY"],
        ["broken", "1", "UNAVAILABLE"],
        ["brought", "2", "READY"],
        ["untouched", "-", "-"],
    ]
    assert rows[2][3].startswith("Internal: ValueError: no weights")
    assert pybackend("unload", "a", "--unload-dependents", url).returncode == 0
    rows = json.loads(pybackend("status", "--ready", "--json", url).stdout)
    assert [row["name"] for row in rows] == ["brought"]


def test_mistakes(pybackend, server):
    done = pybackend("load", "a", "--file=x", f"--url={server.url}")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, 'Bad option: "--file". Got x, expected PATH=FILE')
    done = pybackend("load", "a", "--config=/gone", f"--url={server.url}")
    assert (done.returncode, done.stderr) == (1, "error: cannot read /gone: No such file or directory\n")
    done = pybackend("status", "--url=127.0.0.1:1")
    assert (done.returncode, done.stderr[:41]) == (1, "error: no server answers at http://127.0.0.1:1"[:41])


TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
}
