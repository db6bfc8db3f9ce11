"""Who may call an entrance: certificates and API keys of clients, in the form that HAProxy reads.

TLS ends at the entrance, and so do the keys: replicas get the key of the application instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.frontend.access.api_keys import NO_KEY, WRONG_KEY, ApiKeys
from pybackend.frontend.tls import PortCertificates
from pybackend.settings import KeyExemption, TlsSettings
from pybackend_addons.ray.cluster import KEY_HEADER, Cluster

log = logging.getLogger(__name__)

_PROTOCOLS = {"http": "http/1.1", "grpc": "h2"}
_KEYS = "keys.lst"
_CORS = "--http-cors-origin"

_EXEMPT = {
    "http": r"path,url_dec -m reg ^/v2/(health/(live|ready)|models/[^/]+(/versions/[^/]+)?/ready)$",
    "grpc": "path -m reg ^/(inference\\.GRPCInferenceService/(Server(Live|Ready)|ModelReady)|grpc\\.health\\.v1\\.Health/[^/]+)$",
}
"""The calls that the exemption of health opens."""

_UNAUTHENTICATED = 16


def bind_line(cluster: Cluster, service: str, directory: Path) -> str:
    """The line of the configuration that opens a port: ``http``, ``grpc`` or ``metrics``."""
    address = f"[{cluster.address}]" if ":" in cluster.address else cluster.address
    port = {"http": cluster.http_port, "grpc": cluster.grpc_port, "metrics": cluster.metrics_port}[service]
    line = f"bind {address}:{port}{' proto h2' if service == 'grpc' else ''}"
    tls = _certificates(cluster).get(service)
    if tls is not None:
        line += f" ssl crt {_pair_file(directory, service)} alpn {_PROTOCOLS[service]} ssl-min-ver TLSv1.2"
        if tls.mutual:
            line += f" verify required ca-file {_root_file(directory, service) if tls.root else '@system-ca'}"
    return line


def key_lines(cluster: Cluster, service: str, directory: Path) -> str:
    """The lines of the configuration that refuse calls to a port without a key of a client; none if calls need none."""
    keys = cluster.api_keys
    if keys is None or (service == "metrics" and KeyExemption.METRICS in keys.exempt):
        return ""
    digest = "sha2(256),hex,lower -m str"
    lines = [
        f"acl has_key req.fhdr({KEY_HEADER}),{digest} -f {directory / _KEYS}",
        f"acl has_key http_auth_bearer,{digest} -f {directory / _KEYS}",
        f"acl repeats_header req.fhdr_cnt({KEY_HEADER}) gt 1",
        "acl repeats_header req.fhdr_cnt(authorization) gt 1",
        f"acl gives_key req.fhdr({KEY_HEADER}) -m found",
        "acl gives_key http_auth_bearer -m found",
        "http-request set-var(txn.may_call) bool(true) if has_key !repeats_header",
    ]
    if KeyExemption.HEALTH in keys.exempt and service in _EXEMPT:
        lines.append(f"http-request set-var(txn.may_call) bool(true) if {{ {_EXEMPT[service]} }}")
    if service == "http" and any(word.startswith(_CORS) for word in cluster.arguments):
        asks = "METH_OPTIONS { req.hdr(origin) -m found } { req.hdr(access-control-request-method) -m found }"
        lines.append(f"http-request set-var(txn.may_call) bool(true) if {asks}")
    lines.append("acl may_call var(txn.may_call) -m bool")
    refusal = _grpc_refusal if service == "grpc" else _http_refusal
    lines += [refusal(WRONG_KEY, "!may_call gives_key"), refusal(NO_KEY, "!may_call")]
    return "\n    ".join(lines)


def one_word(text: str) -> str:
    """A text as one word of the configuration."""
    for mark in "\\\"' ":
        text = text.replace(mark, f"\\{mark}")
    return text


def _http_refusal(sentence: str, condition: str) -> str:
    body = one_word(json.dumps({"error": sentence}))
    return f"http-request return status 401 content-type application/json hdr www-authenticate Bearer string {body} if {condition}"


def _grpc_refusal(sentence: str, condition: str) -> str:
    head = f"hdr grpc-status {_UNAUTHENTICATED} hdr grpc-message {one_word(sentence)}"
    return f"http-request return status 200 content-type application/grpc {head} if {condition}"


def _certificates(cluster: Cluster) -> dict[str, TlsSettings]:
    return {
        service: tls for service, tls in (("http", cluster.http_tls), ("grpc", cluster.grpc_tls)) if tls is not None
    }


def _pair_file(directory: Path, service: str) -> Path:
    return directory / f"{service}.pem"


def _root_file(directory: Path, service: str) -> Path:
    return directory / f"{service}-root.pem"


class EntranceFiles:
    """The operator's files, followed: HAProxy hears of new certificates and keys.

    ``ask`` sends a command to HAProxy. Raises ServerError if a file cannot be used.
    """

    def __init__(self, cluster: Cluster, directory: Path, ask: Callable[[str], Awaitable[str]]) -> None:
        self._directory = directory
        self._ask = ask
        self._certificates = {
            service: PortCertificates(tls, service, _PROTOCOLS[service])
            for service, tls in _certificates(cluster).items()
        }
        self._keys = None if cluster.api_keys is None else ApiKeys(cluster.api_keys.file)
        self._known: set[str] = set()
        self._telling = asyncio.Lock()
        for each in self._followed():
            each.files.handing.append(self._tell)
        self.write()

    def _followed(self) -> Iterator[PortCertificates | ApiKeys]:
        yield from self._certificates.values()
        if self._keys is not None:
            yield self._keys

    def write(self) -> None:
        """Write the files that HAProxy reads when it starts."""
        for path, text in self._texts():
            path.touch(mode=0o600)
            path.write_text(text)
        if self._keys is not None:
            self._known = self._digests()
            path = self._directory / _KEYS
            path.touch(mode=0o600)
            path.write_text("".join(f"{digest}\n" for digest in sorted(self._known)))

    def _digests(self) -> set[str]:
        return set() if self._keys is None else {digest.decode() for digest in self._keys.digests}

    def _texts(self) -> Iterator[tuple[Path, str]]:
        for service, certificates in self._certificates.items():
            pem = certificates.pem
            yield _pair_file(self._directory, service), _lines(pem.chain) + _lines(pem.key)
            if pem.root is not None and certificates.settings.mutual:
                yield _root_file(self._directory, service), _lines(pem.root)

    async def follow(self) -> None:
        """Tell HAProxy when a file has changed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._followed():
                group.create_task(each.files.follow())
            await asyncio.Event().wait()  # there may be no files

    async def _tell(self) -> None:
        async with self._telling:  # HAProxy takes one change at a time
            known = self._known
            self.write()
            try:
                for path, text in self._texts():
                    kind = "ca-file" if path.name.endswith("-root.pem") else "cert"
                    await self._command(f"set ssl {kind} {path} <<\n{text}", "ransaction ")
                    await self._command(f"commit ssl {kind} {path}", "Success")
                for digest in sorted(self._known - known):
                    await self._command(f"add acl {self._directory / _KEYS} {digest}")
                for digest in sorted(known - self._known):
                    await self._command(f"del acl {self._directory / _KEYS} {digest}")
            except (OSError, ServerError) as error:
                # A HAProxy that was started again has read the files.
                log.error("HAProxy did not take the new certificates or API keys: %s", error)  # noqa: TRY400

    async def _command(self, command: str, expected: str = "") -> None:
        answer = await self._ask(command)
        if expected not in answer if expected else answer:
            raise ServerError(answer)


def _lines(pem: bytes) -> str:
    """PEM without empty lines, which end what HAProxy is sent."""
    return "".join(f"{line}\n" for line in pem.decode("ascii", "replace").splitlines() if line.strip())
