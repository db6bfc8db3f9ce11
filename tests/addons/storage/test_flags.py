"""URLs of repositories that cannot be used: said in one line, before a server starts."""

import pytest

CONTRADICTIONS = {
    "a repository with an unknown scheme": (
        ("serve", "hdfs://models"),
        "error: the model repository 'hdfs://models' has a scheme that this server does not know: write "
        "s3://bucket/path",
    ),
    "a URL without a bucket": (
        ("serve", "--model-repository=s3://"),
        "error: the model repository 's3:' cannot be used: it names no bucket. Write s3://bucket/path",
    ),
}


@pytest.mark.spec("srv-P02")
@pytest.mark.parametrize(("arguments", "text"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_settings_that_contradict_each_other(pybackend, arguments, text):
    done = pybackend(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(text)
    assert len(done.stderr.splitlines()) == 1
