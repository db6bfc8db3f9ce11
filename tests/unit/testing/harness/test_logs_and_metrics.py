"""What a model logs and counts, as a test sees it."""

import gc
import logging

import numpy as np
import pytest

from pybackend_testing import InferenceFailed, ModelHarness
from tests.unit.testing.conftest import configuration

DONE = 'return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]'


def test_lines_have_level_place_and_text(execute):
    harness = execute(
        f"""
        log = pb_utils.Logger
        log.log_info("i")
        log.log_warn("w")
        log.log_error("e")
        log.log_verbose("v")
        log.log("l", log.WARNING)
        {DONE}
        """
    )
    harness.infer(IN=[1])
    assert [(line.level, line.message, line.line) for line in harness.logs] == [
        ("INFO", "i", 8), ("WARNING", "w", 9), ("ERROR", "e", 10), ("VERBOSE", "v", 11), ("WARNING", "l", 12),
    ]  # fmt: skip
    assert harness.logs[0].file == f"{harness.directory}/1/model.py"
    assert str(harness.logs[0]) == "INFO model.py:8] i"


def test_pytest_shows_the_lines_as_records_of_logging(execute, caplog):
    harness = execute(f"pb_utils.Logger.log_warn('100 % of it')\npb_utils.Logger.log_verbose('much')\n{DONE}")
    with caplog.at_level(logging.DEBUG, logger="pybackend.model.m"):
        harness.infer(IN=[1])
    shown = [(r.name, r.levelname, r.getMessage(), r.filename, r.lineno) for r in caplog.records]
    assert shown == [
        ("pybackend.model.m", "WARNING", "100 % of it", "model.py", 6),
        ("pybackend.model.m", "DEBUG", "much", "model.py", 7),
    ]


# --- Metrics ---

COUNTS = """
class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        self.families = [
            family("asked_total", "Requests", family.COUNTER),
            family("depth", "Queue", family.GAUGE),
            family("size", "Bytes", family.HISTOGRAM),
        ]
        self.counter = self.families[0].Metric(labels={"model": args["model_name"], "a": 'quo"te'})
        self.gauge = self.families[1].Metric()
        self.histogram = self.families[2].Metric(labels={"m": "x"}, buckets=[1, 2.5, 10])

    def execute(self, requests):
        for request in requests:
            value = float(request.inputs()[0].as_numpy()[0])
            self.counter.increment(1)
            self.gauge.set(value)
            self.histogram.observe(value)
        values = np.array([self.counter.value(), self.gauge.value()], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]) for _ in requests]
"""


def test_samples_are_named_as_on_the_servers_page(opened):
    harness = opened(COUNTS)
    for value in (1.0, 2.5, 3.0, 100.0):
        result = harness.infer(IN=[value])
    assert result["OUT"].tolist() == [4.0, 100.0]
    metrics = harness.metrics
    assert dict(metrics) == {
        'asked_total{a="quo\\"te",model="m"}': 4.0,
        "depth": 100.0,
        'size_bucket{le="1",m="x"}': 1,
        'size_bucket{le="2.5",m="x"}': 2,
        'size_bucket{le="10",m="x"}': 3,
        'size_bucket{le="+Inf",m="x"}': 4,
        'size_sum{m="x"}': 106.5,
        'size_count{m="x"}': 4,
    }
    assert metrics.value("asked_total", model="m", a='quo"te') == 4.0
    assert metrics.value("depth") == metrics["depth"] == 100.0
    assert len(metrics) == 8
    with pytest.raises(KeyError, match="there is no metric nothing; there are: asked_total"):
        metrics.value("nothing")


def test_gauges_go_up_and_down(opened):
    harness = opened(COUNTS)
    harness.infer(IN=[5.0])
    harness.model.gauge.increment(-2)
    assert harness.metrics["depth"] == 3.0


def test_a_series_is_shared_and_goes_with_its_last_metric(opened):
    harness = opened(COUNTS)
    again = harness.model.families[1].Metric()
    again.set(7)
    assert harness.model.gauge.value() == 7.0
    del again
    gc.collect()
    assert harness.metrics["depth"] == 7.0
    harness.model.gauge = None
    gc.collect()
    assert "depth" not in harness.metrics
    harness.model.gauge = harness.model.families[1].Metric()
    assert harness.metrics["depth"] == 0.0


def test_models_that_run_each_other_share_their_metrics(opened, write):
    other = ModelHarness(write(COUNTS, "other"), config=configuration())
    harness = opened(COUNTS, models={"other": other})
    other.infer(IN=[1.0])
    assert harness.metrics.value("asked_total", model="other", a='quo"te') == 1.0
    assert harness.metrics.value("asked_total", model="m", a='quo"te') == 0.0
    assert harness.metrics["depth"] == 1.0


def test_harnesses_that_do_not_know_each_other_share_nothing(opened):
    first, second = opened(COUNTS, name="a"), opened(COUNTS, name="b")
    first.infer(IN=[1.0])
    assert second.metrics["depth"] == 0.0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "self.counter.increment(-1)",
            "Failed to increment metric value: Failed to process the request for model 'm_0'",
        ),
        ("self.counter.set(1)", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        ("self.gauge.observe(1)", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
        ("self.histogram.value()", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
        ("self.families[0].Metric(buckets=[1])", "Failed to create metric. Unexpected buckets found."),
        (
            "self.families.clear()\nself.gauge.value()",
            "Invalid metric operation as the corresponding 'MetricFamily' has",
        ),
        (
            "pb_utils.MetricFamily('depth', '', pb_utils.MetricFamily.COUNTER)",
            "Error when creating MetricFamily: Failed to process the request for model 'm_0', message: metric family 'depth' is registered as a gauge, it cannot be a counter too.",
        ),
        ("pb_utils.MetricFamily('0', '', pb_utils.MetricFamily.COUNTER)", "Error when creating MetricFamily: "),
    ],
)
def test_what_is_refused(opened, body, text, snapshot):
    body = body.replace("\n", "\n            ")
    code = COUNTS.replace("for request in requests:\n", f"for request in requests:\n            {body}\n")
    with pytest.raises(InferenceFailed) as caught:
        opened(code).infer(IN=[1.0]).raise_for_error()
    assert text in str(caught.value)
    assert str(caught.value) == snapshot


def test_metrics_in_finalize_and_after(write):
    code = (
        COUNTS
        + "\n    def finalize(self):\n        self.gauge.set(9)\n        pb_utils.Logger.log_info(str(self.gauge.value()))\n"
    )
    with ModelHarness(write(code), config=configuration()) as harness:
        model = harness.model
    assert harness.logs[0].message == "9.0"
    del model
    gc.collect()
    assert np.ones(1)[0] == 1
