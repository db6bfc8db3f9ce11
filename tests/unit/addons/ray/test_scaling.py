import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pybackend_addons.ray.scaling import COMPUTING, WAITING, waiting_query, waiting_share, wanted_servers


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus (Debian: apt-get install prometheus)")
@pytest.mark.parametrize(("waiting", "computing"), [(300, 400), (0, 0), (0, 50), (500, 100)])
def test_prometheus_computes_the_same(tmp_path: Path, waiting: int, computing: int) -> None:
    """The times of two pods, in microseconds for each second."""
    (tmp_path / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "g", "rules": [{"record": "share", "expr": waiting_query('pod=~"a-.*"')}]}]})
    )
    series = [
        {"series": f'{name}{{pod="{pod}",model="m"}}', "values": f"0+{each * 10}x30"}
        for name, each in ((WAITING, waiting), (COMPUTING, computing))
        for pod in ("a-1", "a-2", "b-1")
    ]
    share = waiting_share(2 * waiting, 2 * computing)
    expected = [{"expr": "share", "eval_time": "4m", "exp_samples": [{"labels": "share", "value": share}]}]
    test = {"interval": "10s", "input_series": series, "promql_expr_test": expected}
    (tmp_path / "test.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "10s", "tests": [test]})
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("present", "share", "wanted"), [(1, 2.0, 4), (4, 0.5, 4), (4, 0.0, 3), (1, 0.0, 0)])
def test_servers_are_added_at_once_and_removed_one_by_one(present: int, share: float, wanted: int) -> None:
    assert wanted_servers(present, share, 0.5) == wanted
