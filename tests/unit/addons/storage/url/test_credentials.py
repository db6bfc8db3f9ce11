"""Credentials of cloud storage, from variables and files."""

import json

import pytest

from pybackend.errors import ServerError
from pybackend_addons.storage.url import configuration, parse_url

S3, GS, AS = (parse_url(text) for text in ("s3://bucket/models", "gs://bucket/models", "as://account/container/models"))

CASES = [
    (S3, {"AWS_ACCESS_KEY_ID": "key", "AWS_DEFAULT_REGION": "eu-north-1"}, {"region": "eu-north-1"}),
    (S3, {"AWS_ACCESS_KEY_ID": "key", "AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, {"region": "a"}),
    (S3, {}, {}),
    (GS, {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}, {"application_credentials": "/key.json"}),
    (
        AS,
        {"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "secret"},
        {"account_name": "other", "account_key": "secret"},
    ),
    (
        AS,
        {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "id", "AZURE_STORAGE_KEY": "unused"},
        {"client_id": "id"},
    ),
]


@pytest.mark.parametrize(("url", "variables", "expected"), CASES)
def test_variables(url, variables, expected):
    assert configuration(url, variables) == expected


def test_a_profile_has_its_keys_in_two_files(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = usual\naws_secret_access_key = s\n"
        "[work]\naws_access_key_id = key\naws_secret_access_key = p%w\naws_session_token = token\n"
    )
    (tmp_path / ".aws" / "config").write_text("[default]\nregion = r1\n[profile work]\nregion = r2\n")
    home = {"HOME": str(tmp_path)}
    keys = {"access_key_id": "key", "secret_access_key": "p%w", "session_token": "token"}
    assert configuration(S3, {**home, "AWS_PROFILE": "work"}) == {**keys, "region": "r2"}
    assert configuration(S3, {**home, "AWS_PROFILE": "work", "AWS_REGION": "r3"}) == {**keys, "region": "r3"}
    assert configuration(S3, home) == {"access_key_id": "usual", "secret_access_key": "s", "region": "r1"}
    assert configuration(S3, {**home, "AWS_ACCESS_KEY_ID": "given"}) == {}
    with pytest.raises(ServerError, match=r"AWS_PROFILE is 'play', and .* have no aws_access_key_id for it"):
        configuration(S3, {**home, "AWS_PROFILE": "play"})


def test_the_longest_prefix_in_the_file_wins(tmp_path):
    path = tmp_path / "credentials.json"
    path.write_text(
        json.dumps(
            {
                "s3": {
                    "": {"key_id": "any", "secret_key": "s", "region": "r", "session_token": ""},
                    "s3://bucket": {"key_id": "bucket", "secret_key": "s"},
                    "s3://bucket/other": {"key_id": "other", "secret_key": "s"},
                },
                "gs": {"gs://bucket": "/key.json", "gs://public": ""},
                "as": {"": {"account_str": "account", "account_key": "secret"}},
            }
        )
    )
    variables = {"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AZURE_STORAGE_KEY": "unused"}
    assert configuration(S3, variables) == {"access_key_id": "bucket", "secret_access_key": "s"}
    assert configuration(parse_url("s3://else/x"), variables) == {
        "access_key_id": "any",
        "secret_access_key": "s",
        "region": "r",
    }
    assert configuration(GS, variables) == {"application_credentials": "/key.json"}
    assert configuration(parse_url("gs://public/x"), variables) == {"skip_signature": True}
    assert configuration(AS, variables) == {"account_name": "account", "account_key": "secret"}
    with pytest.raises(ServerError, match="has no credentials for gs://else/x: add an entry"):
        configuration(parse_url("gs://else/x"), variables)


@pytest.mark.parametrize("text", ["{", "[]", '{"s3": []}', '{"s3": {"": "key"}}'])
def test_a_file_of_another_form_is_refused(tmp_path, text):
    path = tmp_path / "credentials.json"
    path.write_text(text)
    with pytest.raises(ServerError, match=r"credentials\.json"):
        configuration(S3, {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ServerError, match="which cannot be read: No such file"):
        configuration(S3, {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "none.json")})
