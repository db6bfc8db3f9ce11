"""The repository agent ``checksum``: a model is loaded only if its files have the digests in its configuration."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pybackend.author_files.reading import open_file_beneath
from pybackend.errors import ModelConfigError
from pybackend.modelconfig.schema import ModelConfig

_MD5 = "MD5"
_CHUNK_BYTES = 1024 * 1024


def check_digests(config: ModelConfig, directory: Path) -> None:
    """Compare files with the parameters ``MD5:<path>`` of the agent. Blocking: it reads the files.

    It shows that a copy is complete. It does not protect against somebody who can change the configuration too.

    Raises:
        ModelConfigError: a file cannot be read, has another digest, or a parameter has another form.
    """
    for agent in config.document.get("model_repository_agents", {}).get("agents", ()):
        for key, expected in agent["parameters"].items():
            kind, _, name = key.partition(":")
            if kind != _MD5 or not name:
                raise ModelConfigError(
                    f"model '{config.name}': agent 'checksum' has the parameter '{key}', and knows only "
                    f"'{_MD5}:<path in the model's folder>' ({config.source})"
                )
            found = _digest(config, directory, name)
            if found != expected.strip().lower():
                raise ModelConfigError(
                    f"model '{config.name}': Mismatched MD5 hash for file {name}: it is {found}, and agent 'checksum' "
                    f"expects {expected}. Copy the file again, or correct the digest ({config.source})"
                )


def _digest(config: ModelConfig, directory: Path, name: str) -> str:
    try:
        with open_file_beneath(directory, name) as file:
            digest = hashlib.md5(usedforsecurity=False)
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError as error:
        raise ModelConfigError(
            f"model '{config.name}': agent 'checksum' cannot read {directory / name}: {error.strerror} ({config.source})"
        ) from None
