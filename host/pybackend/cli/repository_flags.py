"""Flags of ``pybackend serve`` that name the places of models: directories, and URLs of cloud storage."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pybackend.cli.cloud_flags import serves_vertex_ai
from pybackend.errors import ServerError
from pybackend.mirror.url import is_url, parse_url
from pybackend.settings import CloudRepositorySettings


def repository_place(text: str) -> Path | str:
    """Parse the path of a directory, or a URL, which stays text.

    Raises:
        ServerError: the URL has an unknown form.
    """
    if not is_url(text):
        return Path(text)
    parse_url(text)
    return text


def add_repository_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    group.add_argument(
        "repository",
        nargs="?",
        type=repository_place,
        metavar="REPOSITORY",
        help="directory that holds the models, or URL of a place in cloud storage",
    )
    group.add_argument(
        "--model-repository",
        "--model-store",
        action="append",
        type=repository_place,
        default=[],
        metavar="DIR",
        help="another directory of models, or s3://bucket/path, s3://https://host:port/bucket/path, gs://bucket/path, "
        "as://account/container/path; may be repeated",
    )
    group.add_argument(
        "--repository-cache-directory",
        type=Path,
        default=None,
        metavar="DIR",
        help="where models from cloud storage are kept on this machine [$XDG_CACHE_HOME/pybackend/repositories, else "
        "/var/cache/pybackend/repositories for root and ~/.cache/pybackend/repositories for others]",
    )


def repository_settings(
    given: argparse.Namespace, *, needs_repository: bool
) -> tuple[tuple[Path, ...], CloudRepositorySettings]:
    """The directories of models, and the repositories in cloud storage.

    Raises:
        ServerError: there are none.
    """
    repositories = ([given.repository] if given.repository else []) + given.model_repository
    if not repositories and os.environ.get("AIP_STORAGE_URI") and serves_vertex_ai(given, os.environ):
        repositories = [repository_place(os.environ["AIP_STORAGE_URI"])]
    if needs_repository and not repositories:
        raise ServerError(
            "creating server: Invalid argument - --model-repository must be specified: `pybackend serve DIRECTORY`"
        )
    # Absolute: models receive these paths, and may change their working directory.
    directories = tuple(place.absolute() for place in repositories if isinstance(place, Path))
    urls = tuple(place for place in repositories if isinstance(place, str))
    cache_directory = given.repository_cache_directory
    return directories, CloudRepositorySettings(urls, cache_directory and cache_directory.absolute())
