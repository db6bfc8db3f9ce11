"""The URLs of repositories in cloud storage, in the forms of the reference. Read from the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from pybackend.errors import ServerError

S3, GCS, AZURE = "s3", "gs", "as"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ENDPOINT = re.compile(r"(?:(https?)://)?([^/:]+|\[[^/\]]+\])(?::(\d{1,5}))?")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}|\$root|\$web")

_FORMS = {
    S3: "s3://bucket/path or s3://https://host:port/bucket/path",
    GCS: "gs://bucket/path",
    AZURE: "as://account/container/path",
}


@dataclass(frozen=True, slots=True)
class RepositoryUrl:
    """A place in cloud storage."""

    text: str  # as the operator wrote it, for messages, without a slash at the end
    scheme: str  # ``s3``, ``gs`` or ``as``
    bucket: str  # the bucket, or Azure's container
    prefix: str  # the path of the models in it, ``""`` for its top
    endpoint: str = ""  # URL of a server other than Amazon's, ``""`` for none
    account: str = ""  # Azure's account, ``""`` for others

    @property
    def identity(self) -> str:
        """The same for all ways to write the same place."""
        return f"{self.scheme}\n{self.endpoint}\n{self.account}\n{self.bucket}\n{self.prefix}"


def is_url(text: str) -> bool:
    """True for a URL, False for the path of a directory."""
    return _SCHEME.fullmatch(text) is not None


def parse_url(text: str) -> RepositoryUrl:
    """Read a URL of a repository. Raises ServerError: it has another form."""
    match = _SCHEME.fullmatch(text)
    assert match is not None
    scheme, rest = match[1].lower(), match[2]
    if scheme not in _FORMS:
        raise ServerError(
            f"the model repository '{text}' has a scheme that this server does not know: write "
            f"{', '.join(_FORMS.values())}, or the path of a directory"
        )
    shown, rest = text.rstrip("/"), rest.strip()
    endpoint = account = ""
    if scheme == S3:
        endpoint, rest = _s3_endpoint(rest, shown)
    elif scheme == AZURE:
        host, _, rest = rest.partition("/")
        account = host.partition(".")[0]
    bucket, _, path = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or (scheme == AZURE and not account):
        raise _wrong(shown, scheme, "it names no bucket" if not bucket else f"'{bucket}' cannot be a bucket's name")
    parts = [part for part in unquote(path).split("/") if part]
    if any(part in {".", ".."} for part in parts):
        raise _wrong(shown, scheme, "its path has '.' or '..'")
    return RepositoryUrl(shown, scheme, bucket, "/".join(parts), endpoint, account)


def _s3_endpoint(rest: str, shown: str) -> tuple[str, str]:
    """Divide the rest of an S3 URL into the server's URL, ``""`` for Amazon's, and bucket with path."""
    protocol = next((known for known in ("https://", "http://") if rest.startswith(known)), "")
    place, _, path = rest.removeprefix(protocol).partition("/")
    if not protocol and ":" not in place:
        return "", rest
    match = _ENDPOINT.fullmatch(place)
    if match is None or int(match[3] or 0) > 65535:
        raise _wrong(shown, S3, f"'{place}' is no host and port")
    return f"{protocol or 'http://'}{place}", path


def _wrong(shown: str, scheme: str, reason: str) -> ServerError:
    return ServerError(f"the model repository '{shown}' cannot be used: {reason}. Write {_FORMS[scheme]}")
