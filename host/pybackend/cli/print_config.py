"""``pybackend serve --print-config``: the settings in effect, as a configuration file that names their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pybackend.cli.setting_sources import Given

_SECRETS = {
    "--http-restricted-api": re.compile(r"(?<==).*", re.DOTALL),
    "--grpc-restricted-protocol": re.compile(r"(?<==).*", re.DOTALL),
    "--cache-config": re.compile(r"(?<=,password=).*", re.DOTALL),
    "--trace-config": re.compile(r"(?<=://)[^/@]*(?=@)"),
}
"""The part of a flag's value that only the server should know."""

_BARE = re.compile(r"true|false|0|-?[1-9][0-9]{0,18}")
"""Texts that TOML writes without quotes."""

_ESCAPES = {**{chr(code): f"\\u{code:04x}" for code in (*range(32), 127)}, '"': '\\"', "\\": "\\\\"}


def settings_text(settings: Iterable[Given]) -> str:
    """The settings as TOML, each with its source. Secrets are hidden; settings that are not set are comments."""
    return "".join(f"{_line(each)}\n" for each in settings)


def _line(given: Given) -> str:
    key = given.flag.removeprefix("--")
    texts = _default_texts(given.default) if given.texts is None else list(given.texts)
    if not texts:
        return f"# {key} is not set"
    secret = _SECRETS.get(given.flag)
    if secret is not None:
        texts = [secret.sub("(hidden)", text) for text in texts]
    shown = f"[{', '.join(map(_quoted, texts))}]" if given.is_repeatable else _value(texts[0], given)
    return f"{key} = {shown}  # {given.source}"


def _default_texts(default: object) -> Sequence[str]:
    if isinstance(default, bool):
        return [str(default).lower()]
    return [str(default)] if default or default == 0 else []


def _value(text: str, given: Given) -> str:
    return text if _BARE.fullmatch(text) and not given.is_text else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(letter, letter) for letter in text)}"'
