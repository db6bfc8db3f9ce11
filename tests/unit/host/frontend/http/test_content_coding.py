"""The choice of a compression by header fields."""

import pytest

from pybackend.frontend.compression import Coding
from pybackend.frontend.http.content_coding import (
    LONGEST_PREFERENCE_BYTES,
    UnsupportedCodingError,
    answer_coding,
    request_coding,
)

GZIP, DEFLATE = Coding.GZIP, Coding.DEFLATE


@pytest.mark.spec("srv-H15")
@pytest.mark.parametrize(
    ("value", "coding"),
    [
        ("gzip", GZIP),
        ("deflate", DEFLATE),
        ("GZip", GZIP),
        ("x-gzip", GZIP),
        ("identity", None),
        ("", None),
        ("br", None),
        ("*", None),
        ("gzip, deflate", GZIP),
        ("deflate, gzip, br", DEFLATE),
        ("br, gzip", GZIP),
        ("gzip;q=0.5, deflate;q=0.9", DEFLATE),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0.5, identity;q=0.4, *;q=1", GZIP),
        ("gzip;q=0", None),
        ("gzip; Q=0.3 ,deflate ; q=0.2", GZIP),
        ("gzip;q=x", None),
        ("gzip;q=nan", None),
        ("gzip;q=7, deflate;q=0.1", DEFLATE),
        (",;=,", None),
    ],
)
def test_answers(value, coding):
    assert answer_coding(value.encode()) is coding


def test_a_list_that_no_client_needs_counts_as_none():
    """It would take long to read, and 256 of them would fill 16 MB."""
    value = b"gzip," + b"a," * LONGEST_PREFERENCE_BYTES
    assert answer_coding(value[:LONGEST_PREFERENCE_BYTES]) is GZIP
    assert answer_coding(value[: LONGEST_PREFERENCE_BYTES + 1]) is None


@pytest.mark.parametrize(
    ("value", "coding"), [("", None), (" identity ", None), ("Gzip", GZIP), ("x-gzip", GZIP), ("deflate", DEFLATE)]
)
def test_requests(value, coding):
    assert request_coding(value.encode()) is coding


@pytest.mark.parametrize("value", ["br", "gzip, deflate", "*", "\xff"])
def test_requests_that_are_refused(value):
    with pytest.raises(UnsupportedCodingError, match="Unsupported compression type: "):
        request_coding(value.encode("latin-1"))
