"""Files that are read again when they change, whatever comes in their place."""

import asyncio
import os

from pybackend.frontend import followed_files
from pybackend.frontend.followed_files import FollowedFiles
from tests.support.gates import wait_until


def test_a_fifo_in_the_place_of_the_file_does_not_end_the_following(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(followed_files, "_LOOK_S", 0.01)
    monkeypatch.setattr(followed_files, "_MOST_READING_S", 0.05)
    file, other = tmp_path / "keys", tmp_path / "other"
    file.write_text("first")

    async def follow():
        taken = asyncio.Queue()
        files = FollowedFiles("keys", [file], file.read_text, taken.put_nowait)
        following = asyncio.create_task(files.follow())
        os.mkfifo(other)
        other.replace(file)
        await asyncio.to_thread(wait_until, lambda: "The keys stay as they were" in caplog.text, "the keys are refused")
        writer = os.open(file, os.O_WRONLY)  # the thread that still waits for one ends
        os.close(writer)
        other.write_text("second")
        other.replace(file)
        async with asyncio.timeout(60):
            while await taken.get() != "second":
                pass
        following.cancel()
        return files.first

    assert asyncio.run(follow()) == "first"
    assert f"reading {file} takes longer than 0.05 s: is each of them a file?" in caplog.text
