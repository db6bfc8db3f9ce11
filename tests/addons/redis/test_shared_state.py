"""Two servers that share a bucket and a Redis server, as two machines would."""

from contextlib import ExitStack

import pytest

from tests.addons.redis.test_redis_cache import REDIS, Redis, inserted_within
from tests.e2e.models.test_response_cache import CACHED, CONFIG, COUNTER, array, metric
from tests.support.inference import infer
from tests.support.repositories import PREAMBLE
from tests.support.s3_server import s3_server, variables
from tests.support.server import ServerProcess, serving

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(REDIS is None, reason="there is no redis-server: Debian has it in the package of that name"),
]


def config_of(version: int) -> str:
    return f"{CONFIG} {CACHED} version_policy {{ specific {{ versions: [ {version} ] }} }}"


def serves(server: ServerProcess, path: str) -> bool:
    return server.get(f"/v2/models/{path}/ready").status == 200


def test_what_one_server_has_answered_the_other_one_knows_and_both_load_what_was_uploaded_once(tmp_path):
    """But nothing of a version before its model's configuration names it."""
    pytest.importorskip("redis")
    with ExitStack() as stack:
        storage = stack.enter_context(s3_server())
        redis = Redis(tmp_path)
        stack.callback(redis.stop)
        storage.put("shared/m/1/model.py", PREAMBLE + COUNTER)
        storage.put("shared/m/config.pbtxt", config_of(1))
        flags = (
            "--model-control-mode=poll",
            "--repository-poll-secs=1",
            f"--cache-config=redis,host=127.0.0.1,port={redis.port}",
        )
        servers = one, two = [
            stack.enter_context(
                serving(
                    storage.url("shared"),
                    flags=(*flags, f"--repository-cache-directory={tmp_path / name}"),
                    env=variables(),
                )
            )
            for name in ("one", "two")
        ]
        first = infer(one, "m", {"IN": array(1)})
        inserted_within(one, "m")
        assert infer(two, "m", {"IN": array(1)})["COUNT"].tolist() == first["COUNT"].tolist()
        assert metric(two, "nv_inference_exec_count", "m") == 0

        storage.put("shared/m/2/model.py", PREAMBLE + COUNTER.replace("self.executions = 0", "self.executions = 50"))
        storage.put("shared/later/1/model.py", PREAMBLE + COUNTER)
        storage.put("shared/later/config.pbtxt", CONFIG)
        for server in servers:
            server.wait_for("successfully loaded 'later' version 1")  # it has listed the half of version 2, too
            assert serves(server, "m/versions/1")
            assert not serves(server, "m/versions/2")
        storage.put("shared/m/config.pbtxt", config_of(2))
        for server in servers:
            server.wait_for("successfully loaded 'm' version 2")
        assert b"[51," in infer(two, "m", {"IN": array(1)})["COUNT"].tolist()[0][0]
