"""The forms of URLs of repositories."""

import pytest

from pybackend.errors import ServerError
from pybackend.repository.remote import is_url
from pybackend_addons.storage.url import RepositoryUrl, parse_url

FORMS = {
    "s3://bucket/some/path": ("s3", "bucket", "some/path", "", ""),
    "s3://bucket": ("s3", "bucket", "", "", ""),
    "S3://bucket//path//": ("s3", "bucket", "path", "", ""),
    "s3://127.0.0.1:9000/bucket/path": ("s3", "bucket", "path", "http://127.0.0.1:9000", ""),
    "s3://http://minio:9000/bucket/path": ("s3", "bucket", "path", "http://minio:9000", ""),
    "s3://https://minio.example.org:443/bucket/a/b": ("s3", "bucket", "a/b", "https://minio.example.org:443", ""),
    "s3://https://[::1]:9000/bucket": ("s3", "bucket", "", "https://[::1]:9000", ""),
    "gs://bucket/some%20path": ("gs", "bucket", "some path", "", ""),
    "as://account/container/path": ("as", "container", "path", "", "account"),
    "as://account.blob.core.windows.net/container": ("as", "container", "", "", "account"),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.items())
def test_forms_of_the_reference(text, expected):
    scheme, bucket, prefix, endpoint, account = expected
    assert parse_url(text) == RepositoryUrl(text.rstrip("/"), scheme, bucket, prefix, endpoint, account)


REFUSED = {
    "s3://": "it names no bucket. Write s3://bucket/path or s3://https://host:port/bucket/path",
    "s3://b/x": "'b' cannot be a bucket's name",
    "s3://host:port/bucket": "'host:port' is no host and port",
    "s3://bucket/a/../b": "its path has '.' or '..'",
    "s3://bucket/%2e%2e/b": "its path has '.' or '..'",
    "as://account": "it names no bucket. Write as://account/container/path",
    "az://container/path": "has a scheme that this server does not know: write s3://bucket/path",
    "https://example.org/models": "has a scheme that this server does not know",
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_other_forms_are_refused(text, reason):
    with pytest.raises(ServerError) as refused:
        parse_url(text)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_paths_are_no_urls():
    assert [is_url(text) for text in ("models", "/srv/models", "./s3:/x", "s3://bucket/x")] == [
        False,
        False,
        False,
        True,
    ]


def test_one_place_has_one_identity():
    same = {parse_url(text).identity for text in ("s3://bucket/path", "s3://bucket/path/", "s3://bucket//path")}
    assert len(same) == 1
    assert parse_url("gs://bucket/path").identity not in same
