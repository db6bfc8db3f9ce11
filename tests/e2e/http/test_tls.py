"""TLS on the ports of HTTP and gRPC: clients that trust the server, clients with certificates, and wrong files."""

import json
import signal
import socket
import ssl
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import trustme
from tritonclient.utils import InferenceServerException

from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

LARGE = np.arange(3_000_000, dtype=np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates of a server, a client, and of the authority that has signed both, as PEM files."""
    place = tmp_path_factory.mktemp("certificates")
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(place / "root.pem")
    for name, signed in (
        ("server", authority.issue_cert("127.0.0.1", "localhost")),
        ("client", authority.issue_cert("client@example.org")),
        ("stranger", stranger.issue_cert("stranger@example.org")),
    ):
        signed.cert_chain_pems[0].write_to_path(place / f"{name}.pem")
        signed.private_key_pem.write_to_path(place / f"{name}.key")
    return place


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    write_model(place, "identity", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    return place


def flags(files, service, *more):
    return (
        f"--{service}-use-ssl",
        f"--{service}-server-cert={files / 'server.pem'}",
        f"--{service}-server-key={files / 'server.key'}",
        *more,
    )


def inputs(module, array):
    tensor = module.InferInput("IN", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


@pytest.fixture(scope="module")
def secure(files, repository):
    with serving(repository, flags=(*flags(files, "http"), *flags(files, "grpc")), ready=False) as server:
        server.wait_for("identity .*READY")
        yield server


@pytest.mark.spec("srv-H48", "srv-H15")
def test_https(secure, files):
    trusting = ssl.create_default_context(cafile=files / "root.pem")
    url = f"https://127.0.0.1:{secure.port}"
    assert urllib.request.urlopen(f"{url}/v2/health/ready", context=trusting, timeout=60).status == 200
    client = tritonclient.http.InferenceServerClient(
        secure.url, ssl=True, ssl_context_factory=lambda: ssl.create_default_context(cafile=files / "root.pem")
    )
    with client:
        for array in (np.ones(3, np.float32), LARGE, np.ones(5, np.float32)):
            found = client.infer("identity", inputs(tritonclient.http, array)).as_numpy("OUT")
            np.testing.assert_array_equal(found, array)
        packed = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
        for array in (np.ones(3, np.float32), LARGE[:100_000]):
            found = client.infer("identity", inputs(tritonclient.http, array), **packed).as_numpy("OUT")
            np.testing.assert_array_equal(found, array)
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [300_000], "data": [0.5] * 300_000}]}
    request = urllib.request.Request(f"{url}/v2/models/identity/infer", json.dumps(document).encode())
    answer = json.load(urllib.request.urlopen(request, context=trusting, timeout=60))
    assert len(answer["outputs"][0]["data"]) == 300_000


@pytest.mark.spec("srv-H48")
def test_a_client_that_does_not_trust_the_server_and_one_without_tls(secure):
    with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(("127.0.0.1", secure.port)) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", secure.port), timeout=60) as plain:
        plain.sendall(b"no HTTP either\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP")
    for address in (secure.url, secure.grpc_url):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{address}/v2", timeout=60)
        with refused.value as answer:
            said = answer.code, json.load(answer)
        assert said == (400, {"error": "this port speaks TLS: use https:// in place of http://"})
    assert secure.metrics()  # its port stays as it is


def presented(port, files):
    """A connection to a port, and the certificate that it presents."""
    trusting = ssl.create_default_context(cafile=files / "root.pem")
    connection = trusting.wrap_socket(
        socket.create_connection(("127.0.0.1", port), timeout=60), server_hostname="127.0.0.1"
    )
    return connection, connection.getpeercert(binary_form=True)


def live(connection):
    connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    received = b""
    while not received.endswith(b"}"):
        piece = connection.recv(1000)
        assert piece, received
        received += piece
    return received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.spec("srv-H48")
def test_certificates_are_read_again_and_connections_stay(files, repository, tmp_path):
    """When they change, and on SIGHUP; of a pair that does not fit together the old one stays."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def renew(*, with_key=True):
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(certificate)
        if with_key:
            issued.private_key_pem.write_to_path(key)
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    first = renew()
    with serving(repository, flags=(*flags(tmp_path, "http"), *flags(tmp_path, "grpc")), ready=False) as server:
        server.wait_for("identity .*READY")
        old, shown = presented(server.port, tmp_path)
        with old, secure_client(server, tmp_path) as client:
            assert client.is_server_live()
            assert (shown, live(old)) == (first, True)
            renewed = renew()
            for service, port in (("HTTP", server.port), ("GRPC", int(server.grpc_url.rpartition(":")[2]))):
                server.wait_for(f"Read the certificates of {service} in {certificate}, {key} again")
                new, shown = presented(port, tmp_path)
                new.close()
                assert shown == renewed
            renew(with_key=False)
            server.wait_for(
                f"The certificates of HTTP stay as they were: --http-server-cert {certificate} and --http-server-key {key} "
                "cannot be used: .*Both are PEM files, and belong to each other"
            )
            server.wait_for("The certificates of GRPC stay as they were: ")
            read = server.output.count("stay as they were")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.output.count("stay as they were") == read + 2, "the files to be read again")
            new, shown = presented(server.port, tmp_path)
            with new:
                assert (shown, live(new)) == (renewed, True)
            assert live(old)
            np.testing.assert_array_equal(
                client.infer("identity", inputs(tritonclient.grpc, np.ones(3, np.float32))).as_numpy("OUT"), np.ones(3)
            )


def secure_client(server, files, name=None):
    chain = (
        {}
        if name is None
        else {"private_key": str(files / f"{name}.key"), "certificate_chain": str(files / f"{name}.pem")}
    )
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return tritonclient.grpc.InferenceServerClient(
        server.grpc_url, ssl=True, root_certificates=str(files / "root.pem"), channel_args=options, **chain
    )


@pytest.mark.spec("srv-G15")
def test_grpc_with_tls(secure, files):
    with secure_client(secure, files) as client:
        for array in (np.ones(3, np.float32), LARGE, np.ones(5, np.float32)):
            found = client.infer("identity", inputs(tritonclient.grpc, array)).as_numpy("OUT")
            np.testing.assert_array_equal(found, array)
    with tritonclient.grpc.InferenceServerClient(secure.grpc_url) as plain, pytest.raises(InferenceServerException):
        plain.is_server_live(client_timeout=5)


@pytest.mark.spec("srv-G15")
def test_clients_with_certificates(files, repository):
    mutual = ("--grpc-use-ssl-mutual=true", f"--grpc-root-cert={files / 'root.pem'}")
    with serving(repository, flags=flags(files, "grpc", *mutual)) as server:
        with secure_client(server, files, "client") as client:
            assert client.is_server_ready()
        for name in (None, "stranger"):
            with secure_client(server, files, name) as client, pytest.raises(InferenceServerException) as caught:
                client.is_server_live(client_timeout=5)
            assert caught.value.status() in {"StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"}


@pytest.mark.spec("srv-G15")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--grpc-use-ssl",), "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
        (("--http-server-cert=server.pem",), "certificates are given, but not --http-use-ssl"),
        (
            ("--grpc-use-ssl", "--grpc-server-cert=absent.pem", "--grpc-server-key=server.key"),
            "failed to start GRPC service: --grpc-server-cert absent.pem and --grpc-server-key server.key cannot be used: No",
        ),
        (
            ("--http-use-ssl", "--http-server-cert=server.pem", "--http-server-key=client.key"),
            "failed to start HTTP service: --http-server-cert server.pem and --http-server-key client.key cannot be used: ",
        ),
        (
            (
                "--grpc-use-ssl-mutual",
                "--grpc-server-cert=server.pem",
                "--grpc-server-key=server.key",
                "--grpc-root-cert=x",
            ),
            "--grpc-root-cert x cannot be used: No such file or directory",
        ),
    ],
)
def test_wrong_files(files, repository, given, text):
    with serving(repository, flags=given, ready=False, cwd=files) as server:
        assert server.wait() == 1
        assert text in server.output
        assert "Traceback" not in server.output
