"""The dashboard and the rules for alerts: the metrics that they name exist, and a real Prometheus answers them."""

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
from pathlib import Path

import pytest
import yaml

from pybackend.observability.machine import GPU_FAMILIES
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served
from tests.support.server import serving

GPU_METRICS = {name for name, *_ in GPU_FAMILIES}

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


@served(flags=("--cache-config=local,size=1000000",))
def server(repository):
    """A server with a batcher and a cache, so that their families are there."""
    config = identity_config("TYPE_FP32", "[ 1 ]", "max_batch_size: 8 dynamic_batching { }")
    write_model(repository, "batching", IDENTITY, config)
    write_model(repository, "cached", IDENTITY, config + "response_cache { enable: true }")


def send(server):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    for model in ("batching", "cached"):
        assert server.infer(model, {"inputs": [tensor]}).status == 200
    assert server.infer("batching", {"inputs": []}).status == 400


def test_every_metric_exists(server):
    families = set(re.findall(r"^# TYPE (\S+)", page(server), re.MULTILINE))
    dashboard, rules = expressions()
    assert len(dashboard) > 20
    named = {name for text in dashboard + rules for name in METRIC.findall(text)} - GPU_METRICS
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


class Prometheus:
    """A real one, which scrapes a server twice a second.

    Args:
        directory: for its files.
        rules: those that it follows.
        server: to scrape.
        more: settings of the scrape.
    """

    def __init__(self, directory, rules, server, more=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._server = server
        target = f"127.0.0.1:{server.metrics_port}"
        settings = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "pybackend", "static_configs": [{"targets": [target]}], **(more or {})}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._command = [
            "prometheus",
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=error",
        ]

    def __enter__(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(60)

    def ask(self, path, **parameters):
        """The data of an answer, None while it starts."""
        try:
            query = urllib.parse.urlencode(parameters)
            reply = self._server.request("GET", f"/api/v1/{path}?{query}", port=self._port)
        except ConnectionError:
            return None
        if reply.status == 503:
            return None
        answer = json.loads(reply.body) if reply.status == 200 else {"error": reply.body.decode()}
        assert answer.get("status") == "success", answer
        return answer["data"]

    def result(self, query):
        """The result of a query, empty while there is none."""
        return (self.ask("query", query=query) or {"result": []})["result"]

    def firing(self):
        """Name, model and beginning of each alert that fires."""
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("model", ""), alert["activeAt"])
            for alert in alerts
            if alert["state"] == "firing"
        }


@needs_prometheus
@pytest.mark.spec("srv-P18")
def test_prometheus_scrapes_and_answers_every_query(server, tmp_path):
    dashboard, rules = expressions()
    with Prometheus(tmp_path, OBSERVE / "alerts.yml", server) as prometheus:

        def rules_work():
            found = prometheus.ask("rules")
            states = [rule for group in found["groups"] for rule in group["rules"]] if found else []
            return len(states) == len(rules) and all(rule["health"] == "ok" for rule in states)

        wait_until(lambda: prometheus.result("up == 1"), "Prometheus has scraped the server", 60)
        send(server)
        for text in dashboard:
            if not any(name in text for name in GPU_METRICS):
                wait_until(lambda text=text: prometheus.result(text), f"an answer to {text}", 60)
        wait_until(rules_work, "every rule is evaluated", 60)
        for text in rules:
            assert prometheus.ask("query", query=text) is not None
        assert prometheus.firing() == set()


@needs_prometheus
@pytest.mark.thorough
def test_prometheus_scrapes_a_server_with_keys_as_the_page_says(tmp_path):
    page = (OBSERVE.parent / "metrics.md").read_text()
    more = yaml.safe_load(re.search(r"^ +authorization: .*$", page, re.MULTILINE)[0])
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef\n")
    keys.chmod(0o600)
    more["authorization"]["credentials_file"] = str(keys)
    (tmp_path / "models").mkdir()
    with (
        serving(tmp_path / "models", flags=(f"--api-key-file={keys}",), ready=False) as server,
        Prometheus(tmp_path, OBSERVE / "alerts.yml", server, more) as prometheus,
    ):
        wait_until(lambda: prometheus.result("up == 1"), lambda: f"{prometheus.ask('targets')}", 60)


@needs_prometheus
@pytest.mark.spec("srv-M17")
def test_the_alerts_follow_the_figures_of_half_an_hour(tmp_path):
    """In Prometheus' own time: a state that changes does not clear an alert, and what an operator does is none.

    Nor does a model clear its alert that is given up, tried again, and killed by the next request of the same kind.
    """
    unavailable, ready = (
        f'pybackend_model_ready{{model="m",version="1",state="{s}"}}' for s in ("UNAVAILABLE", "READY")
    )
    series = {
        ready: "1 1 0 0 _x20 1x10",
        unavailable: "_x4 0x19 _x11",
        'pybackend_model_ready{model="slow",version="1",state="LOADING"}': "0x35",
        'pybackend_model_ready{model="off",version="1",state="UNLOADED"}': "0x35",
        'pybackend_oldest_execution_seconds{model="m",version="1"}': "0 60 120 180 0x30",
    }
    severities = {"PybackendModelNotReady": "critical", "PybackendExecutionHangs": "warning"}
    down, hangs = severities
    fires = {(down, minute): minute in range(4, 24) for minute in (3, 4, 5, 10, 20, 23, 26)}
    fires |= {(hangs, minute): minute == 3 for minute in (1, 2, 3, 4)}

    def expected(name):
        return [{"exp_labels": {"severity": severities[name], "model": "m", "version": "1"}}]

    # Scraped four times a minute: it serves for two minutes; then each fifth look finds it between two deaths; then it
    # serves.
    looks = [True] * 8 + ([False] * 4 + [True]) * 12 + [True] * 20
    poisoned = {
        f'pybackend_model_ready{{model="m",version="1",state="{state}"}}': " ".join(
            value if serves is shown else "stale" for serves in looks
        )
        for state, value, shown in (("READY", "1", True), ("UNAVAILABLE", "0", False))
    }
    fires_poisoned = {(down, minute): minute in range(5, 17) for minute in (2, *range(5, 17), 20)}

    rules = yaml.safe_load((OBSERVE / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("annotations")  # their texts are no part of this
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": interval,
                "input_series": [{"series": name, "values": values} for name, values in figures.items()],
                "alert_rule_test": [
                    {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": expected(name) if firing else []}
                    for (name, minute), firing in expectations.items()
                ],
            }
            for interval, figures, expectations in (("1m", series, fires), ("15s", poisoned, fires_poisoned))
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


DIES = """
import os

class TritonPythonModel:
    def execute(self, requests):
        os._exit(3)
"""


@needs_prometheus
@pytest.mark.spec("srv-M17", "srv-P18")
def test_the_alert_about_a_model_that_is_down_fires_and_stays(tmp_path):
    """For one that was given up, one whose load failed, and one that cannot be read; not for one that was unloaded."""
    repository = tmp_path / "models"
    repository.mkdir()
    limits = 'parameters { key: "RESTART_LIMIT" value { string_value: "1" } }'
    write_model(repository, "dying", DIES, identity_config(extra=limits))
    write_model(repository, "failed", "raise ValueError('no weights')", identity_config())
    write_model(repository, "unread", IDENTITY, "no: such_field")
    write_model(repository, "unloaded", IDENTITY, identity_config())
    rules = tmp_path / "alerts.yml"
    shipped = (OBSERVE / "alerts.yml").read_text()
    rules.write_text(re.sub(r"^( +for:) .*$", r"\1 1s", shipped, flags=re.MULTILINE).replace("[2m:15s]", "[2s:500ms]"))
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}

    def down(found):
        return sorted((model, since) for name, model, since in found if name == "PybackendModelNotReady")

    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for("2 of 4 models are ready")
        assert server.request("POST", "/v2/repository/models/unloaded/unload").status == 200
        assert server.infer("dying", body).status == 500
        server.wait_until("/v2/models/dying/ready", 200)
        assert server.infer("dying", body).status == 500
        server.wait_for("'dying_0' is given up")
        with Prometheus(tmp_path, rules, server) as prometheus:
            wait_until(lambda: len(down(prometheus.firing())) == 3, lambda: f"{prometheus.ask('alerts')}", 60)
            assert [model for model, _ in down(prometheus.firing())] == ["dying", "failed", "unread"]

            def looks():
                """How often Prometheus has found the alerts to fire."""
                fires = 'ALERTS{alertname="PybackendModelNotReady",alertstate="firing"}'
                (sum_of_all,) = prometheus.result(f"sum(count_over_time({fires}[1h]))") or [{"value": [0, "0"]}]
                return int(sum_of_all["value"][1])

            def stays():
                """True if the alerts are the same after some looks; a busy machine may miss a scrape, and with it all
                series."""
                first, seen = down(prometheus.firing()), looks()
                wait_until(lambda: looks() >= seen + 24, "Prometheus looks", 60)
                return len(first) == 3 and down(prometheus.firing()) == first

            wait_until(stays, lambda: f"{prometheus.ask('alerts')}", 60)
            states = {
                (row["metric"]["model"], row["metric"].get("version", ""), row["metric"]["state"], row["value"][1])
                for row in prometheus.result("pybackend_model_ready")
            }
            assert states == {
                ("dying", "1", "UNAVAILABLE", "0"),
                ("failed", "1", "UNAVAILABLE", "0"),
                ("unread", "", "UNAVAILABLE", "0"),
                ("unloaded", "1", "UNLOADED", "0"),
            }
            # Its other series go on as well, so that counters do not begin again.
            (restarts,) = prometheus.result('pybackend_stub_restarts_total{model="dying"}')
            assert restarts["value"][1] == "1"
            for model in ("failed", "unread"):
                assert server.request("POST", f"/v2/repository/models/{model}/unload").status == 200
            assert server.infer("dying", body).status == 503  # which has it tried again
            wait_until(lambda: not down(prometheus.firing()), "the alert ends", 60)
