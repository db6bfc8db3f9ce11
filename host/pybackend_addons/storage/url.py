"""The URLs of repositories in cloud storage, and the credentials for them, in the forms that the reference reads."""

import configparser
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
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


CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"

Configuration = dict[str, Any]
"""Options of a store, by the names that obstore gives them."""

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_SERVER = re.compile(r"https?://([^/:@?#\s]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(/[^?#\s]*)?")

_OF_AWS_FILE = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}
_OF_ENTRY = {
    S3: {
        "key_id": "access_key_id",
        "secret_key": "secret_access_key",
        "session_token": "session_token",
        "region": "region",
    },
    AZURE: {"account_str": "account_name", "account_key": "account_key"},
}
"""Keys of an entry of the credential file, and the options that they become."""


def configuration(url: RepositoryUrl, variables: Mapping[str, str]) -> Configuration:
    """The options that give access to a repository. Blocking: it may read files.

    Whatever is left out here is found by the library: roles of the machine, web identities, keys in variables.

    Raises ServerError: a file that the variables name cannot be used.
    """
    path = variables.get(CREDENTIAL_FILE)
    if path:
        return _of_file(url, path, variables)
    if url.scheme == S3:
        return _of_aws(variables)
    if url.scheme == AZURE:
        return _of_azure(variables)
    key = variables.get("GOOGLE_APPLICATION_CREDENTIALS")
    return {"application_credentials": key} if key else {}


def s3_endpoint(variables: Mapping[str, str]) -> str:
    """The URL of the server for repositories that name none, from the variables of Amazon's own clients; "" for Amazon's.

    Raises ServerError: it is no URL.
    """
    name = next((name for name in _ENDPOINTS if variables.get(name)), "")
    text = variables.get(name, "").rstrip("/")
    if text and not _SERVER.fullmatch(text):
        raise ServerError(
            f"{name} is '{text}', which is no URL of a server: write http://host:port or https://host:port, or unset it "
            "and write s3://http://host:port/bucket/path"
        )
    return text


def _of_aws(variables: Mapping[str, str]) -> Configuration:
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    chosen: Configuration = {"region": region} if region else {}
    profile = variables.get("AWS_PROFILE")
    if profile or not variables.get("AWS_ACCESS_KEY_ID"):
        chosen = _of_profile(profile, variables) | chosen
    return chosen


def _of_profile(profile: str | None, variables: Mapping[str, str]) -> Configuration:
    """The keys of a profile; those of ``default``, if there are any, for None."""
    home = Path(variables.get("HOME") or "/nonexistent") / ".aws"
    files = {
        Path(variables.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"): profile or "default",
        Path(variables.get("AWS_CONFIG_FILE") or home / "config"): f"profile {profile}" if profile else "default",
    }
    found: Configuration = {}
    for path, section in files.items():
        reader = configparser.RawConfigParser(interpolation=None, strict=False)
        try:
            reader.read(path)
        except (OSError, configparser.Error, UnicodeDecodeError):
            raise ServerError(f"{path} cannot be read: correct it, or set AWS_ACCESS_KEY_ID instead") from None
        if reader.has_section(section):
            row = reader[section]
            found = {option: row[key] for key, option in _OF_AWS_FILE.items() if row.get(key)} | found
    if profile and "access_key_id" not in found:
        names = " and ".join(map(str, files))
        raise ServerError(
            f"AWS_PROFILE is '{profile}', and {names} have no aws_access_key_id for it: write the keys there, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return found


def _of_azure(variables: Mapping[str, str]) -> Configuration:
    chosen: Configuration = {}
    for variable, option in (("AZURE_STORAGE_ACCOUNT", "account_name"), ("AZURE_STORAGE_ENDPOINT", "endpoint")):
        if variables.get(variable):
            chosen[option] = variables[variable]
    if variables.get("AZURE_STORAGE_AUTH_TYPE", "").lower() in {"managed_identity", "default"}:
        if variables.get("AZURE_STORAGE_CLIENT_ID"):
            chosen["client_id"] = variables["AZURE_STORAGE_CLIENT_ID"]
    elif variables.get("AZURE_STORAGE_KEY"):
        chosen["account_key"] = variables["AZURE_STORAGE_KEY"]
    return chosen


def _of_file(url: RepositoryUrl, path: str, variables: Mapping[str, str]) -> Configuration:
    """The entry of the credential file with the longest prefix of a URL."""
    entries = _entries(path, url.scheme)
    fitting = [prefix for prefix in entries if url.text.startswith(prefix)]
    if not fitting:
        raise ServerError(
            f'{CREDENTIAL_FILE} is {path}, which has no credentials for {url.text}: add an entry to "{url.scheme}" '
            'there, with the key "" for all repositories'
        )
    entry = entries[max(fitting, key=len)]
    if url.scheme == GCS:
        if not isinstance(entry, str):
            raise ServerError(f"{path} must name a file of credentials, as text, for {url.text}")
        return {"application_credentials": entry} if entry else {"skip_signature": True}
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise ServerError(f"{path} must have an object of texts for {url.text}")
    profile = entry.get("profile") if url.scheme == S3 else None
    chosen = _of_profile(profile, variables) if profile else {}
    return chosen | {option: entry[key] for key, option in _OF_ENTRY[url.scheme].items() if entry.get(key)}


def _entries(path: str, scheme: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise ServerError(f"{CREDENTIAL_FILE} names {path}, which cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        document = None
    entries = document.get(scheme, {}) if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ServerError(
            f'{CREDENTIAL_FILE} names {path}, which has another form than {{"{scheme}": {{"": ...}}}}: correct it'
        )
    return entries


def located(url: RepositoryUrl) -> RepositoryUrl:
    """The same place with the server that this process's variables name, if the URL names none.

    Raises ServerError: the variable is no URL.
    """
    if url.scheme != S3 or url.endpoint:
        return url
    return replace(url, endpoint=s3_endpoint(os.environ))


def environment_configuration(url: RepositoryUrl) -> Configuration:
    """The same with the variables of this process."""
    return configuration(url, os.environ)
