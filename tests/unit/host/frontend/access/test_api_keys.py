"""Files of API keys that cannot be used."""

import pytest

from pybackend.errors import ServerError
from pybackend.frontend.access.api_keys import ApiKeys


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, " cannot be read: No such file or directory"),
        (b"", " has no key: write one a line, for example the output of `openssl rand -hex 32`"),
        (b"# nothing\n\n", " has no key"),
        (b"0123456789abcdef\nshort\n", ", line 2: a key has 16 characters or more"),
        (b"two words are not a key\n", ", line 1: a key has only visible ASCII characters, without blanks"),
        (b"k" * 16 + b"\n" + b"k\xc3\xa9" * 16, ", line 2: a key has only visible ASCII characters"),
        (b"0123456789abcdef\n" * 1001, " is too large"),
        (b"#" * (1 << 20) + b"\n0123456789abcdef", " is too large"),
    ],
)
def test_files_that_are_refused(tmp_path, content, error):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ServerError) as caught:
        ApiKeys(file)
    assert str(caught.value).startswith(f"--api-key-file {file}{error}")


def test_lines(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"\n  # of the team\r\n 0123456789abcdef \r\nfedcba9876543210")
    keys = ApiKeys(file)
    for key in (b"0123456789abcdef", b"fedcba9876543210"):
        assert keys.refusal([(b"X-Api-Key", key)]) is None
    assert keys.refusal([(b"x-api-key", b"# of the team")]) is not None
