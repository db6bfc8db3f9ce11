"""How commands reach a running server: keys, TLS, Unix-domain sockets; and what they say when they cannot."""

import json

import pytest
import trustme

from pybackend.cli.commands import run
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates, and a file of API keys."""
    directory = tmp_path_factory.mktemp("files")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "root.pem")
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(directory / "server.key")
    server.cert_chain_pems[0].write_to_path(directory / "server.pem")
    (directory / "keys").write_text(f"# ours\n\n{KEY}\n")
    (directory / "keys").chmod(0o600)
    return directory


@pytest.fixture(scope="module")
def secure(files, tmp_path_factory):
    repository = tmp_path_factory.mktemp("secure")
    write_model(repository, "m", IDENTITY, identity_config())
    flags = (
        "--http-use-ssl",
        f"--http-server-cert={files}/server.pem",
        f"--http-server-key={files}/server.key",
        f"--api-key-file={files}/keys",
    )
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for("m .*READY")
        yield server


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command in this process: returns the exit status, standard output and standard error."""
    for variable in ("PYBACKEND_URL", "PYBACKEND_API_KEY"):
        monkeypatch.delenv(variable, raising=False)

    def run_command(*arguments):
        capsys.readouterr()
        status = run(arguments)
        return status, *capsys.readouterr()

    return run_command


def test_keys_and_tls(command, secure, files, monkeypatch):
    url, trusting = f"https://127.0.0.1:{secure.port}", f"--root-cert={files}/root.pem"
    key = f"--api-key-file={files}/keys"
    status, out, err = command("status", "m", "--json", f"--url={url}", trusting, key)
    assert (status, json.loads(out), err) == (0, [{"name": "m", "version": "1", "state": "READY"}], "")
    assert command("infer", "m", "--input=IN=[1, 2]", f"--url={url}", "--insecure", key)[0] == 0
    status, out, _ = command("top", "--json", "--interval=0.01", f"--url={url}", trusting, key, "--metrics-url=none")
    assert (status, [row["model"] for row in json.loads(out)["models"]]) == (0, ["m"])
    monkeypatch.setenv("PYBACKEND_API_KEY", KEY)
    monkeypatch.setenv("PYBACKEND_URL", url)
    assert command("status", trusting)[0] == 0
    monkeypatch.delenv("PYBACKEND_API_KEY")
    assert command("status", trusting, f"--header=x-api-key={KEY}")[0] == 0
    status, out, err = command("status", trusting)
    assert (status, out) == (1, "")
    assert err.startswith("error: an API key is needed: send it as ")
    assert err.endswith("(--api-key-file=FILE sends the key in a file)\n")
    status, out, err = command("status", key)
    assert (status, out) == (1, "")
    assert err.startswith(f"error: cannot trust the certificate of {url}: ")
    assert "--root-cert=FILE names the one that signs it" in err
    err = command("status", key, f"--url=https://127.0.0.1:{secure.metrics_port}")[2]
    assert err.startswith(f"error: no TLS connection with https://127.0.0.1:{secure.metrics_port}: ")
    assert command("status", key, f"--url=http://127.0.0.1:{secure.port}")[0] == 1


def test_a_unix_domain_socket(command, tmp_path):
    (tmp_path / "models").mkdir()
    socket = tmp_path / "s"
    flags = (f"--http-address=unix:{socket}", "--allow-grpc=false", "--allow-metrics=false")
    with serving(tmp_path / "models", flags=(*flags, "--model-control-mode=explicit"), ready=False) as server:
        server.wait_for("Started HTTPService at")
        for url in (f"unix:{socket}", f"unix://{socket}"):
            assert command("status", f"--url={url}") == (0, "no models\n", "")
    status, _, err = command("status", f"--url=unix:{socket}")
    assert (status, err.startswith(f"error: no server answers at unix:{socket}: ")) == (1, True)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--url=ftp://x", "error: 'ftp://x' is not the URL of a server: write, for example, http://localhost:8000\n"),
        (
            "--url=http://127.0.0.1:1",
            "error: no server answers at http://127.0.0.1:1: Connection refused. Start a server",
        ),
        ("--api-key-file=/gone", "error: cannot read /gone: No such file or directory\n"),
        ("--root-cert=/gone", "error: cannot use the certificates in /gone: No such file or directory\n"),
        ("--header=x", 'Bad option: "--header". Got x, expected NAME=VALUE'),
        ("--header=a b=c", 'Bad option: "--header". Got a b=c, expected NAME=VALUE'),
    ],
)
def test_mistakes(command, flag, text):
    status, out, err = command("status", *(["--url=https://127.0.0.1:1"] if "cert" in flag else []), flag)
    assert (status, out) == (1, "")
    assert err.splitlines(keepends=True)[-1].startswith(text)
