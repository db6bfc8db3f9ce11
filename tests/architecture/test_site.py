"""The manual as a site: it is built as `make docs` does, searched, and old addresses lead on."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOVED = runpy.run_path(str(ROOT / "docs" / "hooks" / "moved.py"))["MOVED"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("authentication", "./#restrict-access-authentication-and-tls"),
        ("upload", "./#send-files-upload-a-picture-or-a-document"),
        ("strings?", "authors/tensors/#strings"),
        ("files?", "operators/http-api/#files"),
    ],
)
def test_the_search_finds_words_of_users_in_titles(site, word, place):
    """The search puts sections whose title has the word before all others, and takes plural and singular as one."""
    sections = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = [
        section["location"] or "./"
        for section in sections
        if re.search(rf"\b{word}\b", section["title"], re.IGNORECASE)
    ]
    assert place in [f"./{location}" if location.startswith("#") else location for location in found]


def test_troubleshooting_is_one_click_from_every_page(site):
    wanted = site / "operators" / "troubleshooting"
    lacking = []
    for page in site.rglob("index.html"):
        text = page.read_text()
        links = ((page.parent / target).resolve() for target in re.findall(r'href="([^"#:]*)"', text))
        if "This page has moved" not in text and page.parent != wanted and wanted not in links:
            lacking.append(str(page))
    assert lacking == []


@pytest.mark.parametrize("old", MOVED)
def test_an_old_address_leads_to_a_part_that_exists(site, old):
    target = re.search(r'url=([^"]+)', (site / old / "index.html").read_text())[1]
    path, _, part = urljoin(f"{old}/", target).partition("#")
    assert f'id="{part}"' in (site / path / "index.html").read_text()
