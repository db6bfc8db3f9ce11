"""The dashboard and the rules for alerts: the metrics that they name exist, and a real Prometheus answers them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
from pathlib import Path

import pytest
import yaml

from pybackend.observability.gpu import FIELDS
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

pytestmark = pytest.mark.e2e

OBSERVE = Path(__file__).resolve().parents[3] / "docs" / "operators" / "observe"
METRIC = re.compile(r"\b(?:nv|pybackend)_\w+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
NAMES_OF_THE_REFERENCE = re.compile(r"^nv_\w+ ")

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus (Debian: apt-get install prometheus)",
)


def expressions():
    """Every query of the dashboard and of the rules, for Prometheus instead of Grafana."""
    dashboard = json.loads((OBSERVE / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    found = [text.replace("$__rate_interval", "1m").replace("$model", ".*") for text in found]
    rules = yaml.safe_load((OBSERVE / "alerts.yml").read_text())
    return found, [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def page(server):
    return server.request("GET", "/metrics", port=server.metrics_port).body.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a batcher and a cache, so that their families are there."""
    repository = tmp_path_factory.mktemp("observed")
    config = identity_config("TYPE_FP32", "[ 1 ]", "max_batch_size: 8 dynamic_batching { }")
    write_model(repository, "batching", IDENTITY, config)
    write_model(repository, "cached", IDENTITY, config + "response_cache { enable: true }")
    with serving(repository, flags=("--cache-config=local,size=1000000",)) as server:
        yield server


def send(server):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    for model in ("batching", "cached"):
        assert server.infer(model, {"inputs": [tensor]}).status == 200
    assert server.infer("batching", {"inputs": []}).status == 400


def test_every_metric_exists(server):
    families = set(re.findall(r"^# TYPE (\S+)", page(server), re.MULTILINE))
    dashboard, rules = expressions()
    assert len(dashboard) > 20
    named = {name for text in dashboard + rules for name in METRIC.findall(text)} - FIELDS.keys()
    assert len(named) > 15
    assert {name for name in named if name not in families and SUFFIX.sub("", name) not in families} == set()


def test_panels_do_not_overlap_and_have_titles():
    panels = json.loads((OBSERVE / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells


@needs_prometheus
@pytest.mark.spec("srv-P18")
def test_the_page_passes_promtool(server):
    """It is well-formed. Only names of the reference are against Prometheus' conventions, and stay as they are."""
    send(server)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page(server), capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode in {0, 3}, checked.stderr  # 3: there are remarks about conventions
    remarks = (checked.stdout + checked.stderr).splitlines()
    assert [remark for remark in remarks if not NAMES_OF_THE_REFERENCE.match(remark)] == []


@needs_prometheus
@pytest.mark.spec("srv-P18")
def test_prometheus_scrapes_and_answers_every_query(server, tmp_path):
    dashboard, rules = expressions()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(OBSERVE / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "pybackend", "static_configs": [{"targets": [f"127.0.0.1:{server.metrics_port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]

    def ask(path, **parameters):
        try:
            reply = server.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}", port=port)
        except ConnectionError:
            return None  # it is still starting
        if reply.status == 503:
            return None  # likewise
        answer = json.loads(reply.body) if reply.status == 200 else {"error": reply.body.decode()}
        assert answer.get("status") == "success", answer
        return answer["data"]

    def answers(text):
        data = ask("query", query=text)
        return data is not None and bool(data["result"])

    def rules_work():
        found = ask("rules")
        states = [rule for group in found["groups"] for rule in group["rules"]] if found else []
        return len(states) == len(rules) and all(rule["health"] == "ok" for rule in states)

    prometheus = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers("up == 1"), "Prometheus has scraped the server", 60)
        send(server)
        for text in dashboard:
            if not any(name in text for name in FIELDS):
                wait_until(lambda text=text: answers(text), f"an answer to {text}", 60)
        wait_until(rules_work, "every rule is evaluated", 60)
        for text in rules:
            assert ask("query", query=text) is not None
        firing = {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"] if alert["state"] == "firing"}
        assert firing == set()
    finally:
        prometheus.terminate()
        prometheus.wait(30)
