"""Custom metrics as a model sees them: what reaches the runtime, what is refused before, and when things are dropped."""

import functools
import gc
import math
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.metrics import Metric, MetricFamily, MetricKind
from pybackend_sdk.runtime import Runtime, bind_runtime
from pybackend_wire.metric_rules import MOST_BUCKETS, MOST_TEXT

COUNTER, GAUGE, HISTOGRAM = MetricFamily.COUNTER, MetricFamily.GAUGE, MetricFamily.HISTOGRAM
INFINITY = float("inf")
DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricRuntime(Runtime):
    """Gives handles that count from 1 and keeps each call."""

    instance_name = "m_0_1"

    def __init__(self):
        self.calls = []
        self.handles = 0

    def _new(self, *call):
        self.handles += 1
        self.calls.append(call)
        return self.handles

    def create_metric_family(self, name, description, kind):
        return self._new("family", name, description, kind)

    def create_metric(self, family, labels, buckets):
        return self._new("metric", family, labels, buckets)

    def increment_metric(self, metric, value):
        self.calls.append(("increment", metric, value))

    def set_metric(self, metric, value):
        self.calls.append(("set", metric, value))

    def observe_metric(self, metric, value):
        self.calls.append(("observe", metric, value))

    def metric_value(self, metric):
        self.calls.append(("value", metric))
        return 2.5

    def drop_metric(self, handle):
        self.calls.append(("drop", handle))


@pytest.fixture
def runtime():
    bound = MetricRuntime()
    previous = bind_runtime(bound)
    yield bound
    bind_runtime(previous)


@pytest.fixture
def make(runtime):
    """Makes a metric of a kind and forgets how; the families stay alive until the test ends."""
    families = []

    def make(kind):
        families.append(MetricFamily("n", "d", kind))
        metric = families[-1].Metric(buckets=[1] if kind is HISTOGRAM else None)
        runtime.calls.clear()
        return metric

    return make


def refusal(operation):
    with pytest.raises(TritonModelException) as caught:
        operation()
    return str(caught.value)


# --- What reaches the runtime ---


def test_families_and_series(runtime):
    counters = MetricFamily(name="requests", description="What was asked", kind=COUNTER)
    counter = counters.Metric(labels={"model": "m"})
    gauges = MetricFamily("n", "d", GAUGE)
    gauge = gauges.Metric()
    histograms = MetricFamily(b"h", b"d", HISTOGRAM)
    histogram = histograms.Metric(buckets=[1, np.float32(2.5)])
    plain = histograms.Metric({}, [])
    assert runtime.calls == [
        ("family", "requests", "What was asked", MetricKind.COUNTER),
        ("metric", 1, {"model": "m"}, None),
        ("family", "n", "d", MetricKind.GAUGE),
        ("metric", 3, {}, None),
        ("family", "h", "d", MetricKind.HISTOGRAM),
        ("metric", 5, {}, [1.0, 2.5]),
        ("metric", 5, {}, []),
    ]
    assert all(type(metric) is Metric for metric in (counter, gauge, histogram, plain))


ALLOWED = [
    (COUNTER, "increment", 0, 0.0),
    (COUNTER, "increment", True, 1.0),
    (COUNTER, "increment", INFINITY, INFINITY),
    (GAUGE, "increment", -2.5, -2.5),
    (GAUGE, "set", np.int64(-3), -3.0),
    (GAUGE, "set", np.float32(0.5), 0.5),
    (GAUGE, "set", -INFINITY, -INFINITY),
    (HISTOGRAM, "observe", np.array(4), 4.0),
    (HISTOGRAM, "observe", INFINITY, INFINITY),
]


@pytest.mark.parametrize(("kind", "operation", "value", "sent"), ALLOWED)
def test_changes(runtime, make, kind, operation, value, sent):
    metric = make(kind)
    assert getattr(metric, operation)(value) is None
    assert runtime.calls == [(operation, 2, sent)]
    assert type(runtime.calls[0][2]) is float


@pytest.mark.parametrize("kind", [COUNTER, GAUGE])
def test_value(runtime, make, kind):
    metric = make(kind)
    assert metric.value() == 2.5
    assert runtime.calls == [("value", 2)]


def test_a_gauge_may_be_no_number(runtime, make):
    gauge = make(GAUGE)
    gauge.set(float("nan"))
    (call,) = runtime.calls
    assert math.isnan(call[2])


def test_the_bucket_up_to_infinity_is_there_anyway(runtime):
    family = MetricFamily("n", "d", HISTOGRAM)
    family.Metric(buckets=[1, INFINITY])
    family.Metric(buckets=[INFINITY])
    assert [call[3] for call in runtime.calls if call[0] == "metric"] == [[1.0], []]


# --- What is refused ---

NOT_MONOTONIC = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
REFUSED = [
    (COUNTER, "increment", (-1,), "Failed to increment metric value: ", NOT_MONOTONIC),
    (COUNTER, "increment", (float("nan"),), "Failed to increment metric value: ", NOT_MONOTONIC),
    (COUNTER, "set", (1,), "Failed to set metric value: ", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
    (
        COUNTER,
        "observe",
        (1,),
        "Failed to observe metric value: ",
        "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe",
    ),
    (
        GAUGE,
        "observe",
        (1,),
        "Failed to observe metric value: ",
        "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
    ),
    (
        HISTOGRAM,
        "increment",
        (1,),
        "Failed to increment metric value: ",
        "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment",
    ),
    (HISTOGRAM, "set", (1,), "Failed to set metric value: ", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
    (
        HISTOGRAM,
        "value",
        (),
        "Failed to get metric value: ",
        "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value",
    ),
    (
        HISTOGRAM,
        "observe",
        (float("nan"),),
        "Failed to observe metric value: ",
        "NaN is in no bucket of a histogram.",
    ),
]


@pytest.mark.parametrize(("kind", "operation", "arguments", "prefix", "reason"), REFUSED)
def test_what_a_kind_cannot_do(runtime, make, kind, operation, arguments, prefix, reason):
    metric = make(kind)
    text = refusal(lambda: getattr(metric, operation)(*arguments))
    assert text == f"{prefix}Failed to process the request for model 'm_0_1', message: {reason}"
    assert runtime.calls == []


@pytest.mark.parametrize(
    "value", [None, "x", "1", b"1", [1], 1j, 10**400, np.ones(2)], ids=lambda value: repr(value)[:9]
)
@pytest.mark.parametrize(("kind", "operation"), [(GAUGE, "increment"), (GAUGE, "set"), (HISTOGRAM, "observe")])
def test_values_of_other_types(runtime, make, kind, operation, value):
    metric = make(kind)
    with pytest.raises(TypeError, match=rf"{operation}\(\): .* 'value' must be a number"):
        getattr(metric, operation)(value)
    assert runtime.calls == []


@pytest.mark.parametrize(
    "arguments", [(None, "d", COUNTER), ("n", None, COUNTER), ("n", "d", None), ("n", "d", 0), ("n", "d")]
)
def test_families_of_other_types(runtime, arguments):
    with pytest.raises(TypeError):
        MetricFamily(*arguments)
    assert runtime.calls == []


@pytest.mark.parametrize("name", ["", "1st", "a b", "a-b", "naïve", "a\n", "n" * (MOST_TEXT + 1)])
def test_families_that_cannot_be_called_that(runtime, name):
    text = refusal(lambda: MetricFamily(name, "d", COUNTER))
    assert text.startswith(
        "Error when creating MetricFamily: Failed to process the request for model 'm_0_1', message: "
    )
    assert runtime.calls == []


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (COUNTER, {"labels": [("a", "b")]}, "Failed to create metric. Labels must be a dictionary."),
        (COUNTER, {"labels": "a=b"}, "Failed to create metric. Labels must be a dictionary."),
        (COUNTER, {"labels": {"a": 1}}, "Failed to create metric. Labels must be a dictionary."),
        (HISTOGRAM, {"buckets": (1, 2)}, "Failed to create metric. Buckets must be a list."),
        (HISTOGRAM, {}, "Failed to create metric. Missing required buckets."),
        (GAUGE, {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        (COUNTER, {"buckets": []}, "Failed to create metric. Unexpected buckets found."),
    ],
)
def test_arguments_of_series(runtime, kind, arguments, text):
    family = MetricFamily("n", "d", kind)
    assert refusal(lambda: family.Metric(**arguments)).startswith(text)
    assert len(runtime.calls) == 1


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        (COUNTER, {"labels": {"": "v"}}, "'' is no name for a label"),
        (COUNTER, {"labels": {"a-b": "v"}}, "'a-b' is no name for a label"),
        (COUNTER, {"labels": {"__name__": "v"}}, "'__name__' is no name for a label"),
        (HISTOGRAM, {"labels": {"le": "1"}, "buckets": [1]}, "'le' is no name for a label of a histogram"),
        (COUNTER, {"labels": {"a": "v" * MOST_TEXT}}, "the labels of a metric may have"),
        (HISTOGRAM, {"buckets": [1, 1]}, "the bounds of a histogram's buckets must be strictly increasing, but 1.0"),
        (HISTOGRAM, {"buckets": [2, 1]}, "the bounds of a histogram's buckets must be strictly increasing, but 1.0"),
        (HISTOGRAM, {"buckets": [-INFINITY, 1]}, "a bucket ends at a finite number, not at -inf"),
        (HISTOGRAM, {"buckets": [1, float("nan")]}, "a bucket ends at a finite number, not at nan"),
        (HISTOGRAM, {"buckets": list(range(MOST_BUCKETS + 1))}, "a histogram may have 1000 buckets, these are 1001."),
    ],
)
def test_series_that_cannot_be(runtime, kind, arguments, reason):
    family = MetricFamily("n", "d", kind)
    text = refusal(lambda: family.Metric(**arguments))
    prefix = "Error when creating Metric: Failed to process the request for model 'm_0_1', message: "
    assert text.startswith(prefix + reason)
    assert len(runtime.calls) == 1


def test_bounds_are_numbers(runtime):
    family = MetricFamily("n", "d", HISTOGRAM)
    with pytest.raises(TypeError, match="must be a number"):
        family.Metric(buckets=["1"])


def test_a_label_may_be_called_le_where_there_are_no_buckets(runtime):
    family = MetricFamily("n", "d", GAUGE)
    metric = family.Metric({"le": "x"})
    assert runtime.calls[-1] == ("metric", 1, {"le": "x"}, None)
    del metric


def test_what_utf8_cannot_express_is_escaped(runtime):
    family = MetricFamily("n", "d", GAUGE)
    metric = family.Metric({"path": "a\udcffb"})
    assert runtime.calls[-1] == ("metric", 1, {"path": "a\\udcffb"}, None)
    del metric


def test_a_metric_comes_from_its_family():
    with pytest.raises(TypeError, match="No constructor defined"):
        Metric()


# --- What is deleted ---


def test_a_metric_that_is_deleted_is_dropped_once(runtime):
    family = MetricFamily("n", "d", GAUGE)
    first, second = family.Metric({"a": "1"}), family.Metric({"a": "2"})
    runtime.calls.clear()
    del first
    gc.collect()
    assert runtime.calls == [("drop", 2)]
    second.set(1)
    del second, family
    assert runtime.calls == [("drop", 2), ("set", 3, 1.0), ("drop", 3), ("drop", 1)]


@pytest.mark.parametrize("kind", [COUNTER, GAUGE, HISTOGRAM])
def test_a_family_that_is_deleted_takes_its_metrics_along(runtime, kind):
    family = MetricFamily("n", "d", kind)
    metric = family.Metric(buckets=[1] if kind is HISTOGRAM else None)
    runtime.calls.clear()
    del family
    gc.collect()
    assert runtime.calls == [("drop", 2), ("drop", 1)]
    for operation, arguments in (("increment", (1,)), ("set", (1,)), ("observe", (1,)), ("value", ())):
        assert refusal(functools.partial(getattr(metric, operation), *arguments)) == DELETED
    del metric
    gc.collect()
    assert runtime.calls == [("drop", 2), ("drop", 1)]


def test_a_metric_without_a_family_of_its_own_cannot_be_used(runtime):
    metric = MetricFamily("n", "d", GAUGE).Metric()
    assert refusal(lambda: metric.set(1)) == DELETED


def test_a_family_that_was_refused_drops_nothing(runtime):
    def create_metric_family(name, description, kind):
        raise TritonModelException("no")

    runtime.create_metric_family = create_metric_family
    assert refusal(lambda: MetricFamily("n", "d", COUNTER)) == "no"
    gc.collect()
    assert runtime.calls == []


def test_families_and_metrics_in_a_circle(runtime):
    class Model:
        pass

    model = Model()
    model.itself = model
    model.family = MetricFamily("n", "d", GAUGE)
    model.metric = model.family.Metric()
    runtime.calls.clear()
    del model
    gc.collect()
    assert sorted(runtime.calls) == [("drop", 1), ("drop", 2)]


def test_metrics_are_dropped_once_whoever_deletes_first(runtime):
    """Metrics in one thread, their family in another."""
    for _ in range(50):
        family = [MetricFamily("n", "d", GAUGE)]
        metrics = [family[0].Metric({"a": str(number)}) for number in range(20)]
        runtime.calls.clear()
        start = threading.Barrier(2)

        def delete(items, start=start):
            start.wait()
            items.clear()

        threads = [threading.Thread(target=delete, args=(items,)) for items in (family, metrics)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(runtime.calls) == len(set(runtime.calls)) == 21


def test_metrics_belong_to_the_runtime_that_made_them(runtime):
    family = MetricFamily("n", "d", GAUGE)
    metric = family.Metric()
    runtime.calls.clear()
    bind_runtime(Runtime())
    metric.set(1)
    del metric, family
    assert runtime.calls == [("set", 2, 1.0), ("drop", 2), ("drop", 1)]


def test_nothing_is_dropped_at_exit():
    """The process takes all with it, and what a runtime would need may be gone."""
    code = """
        from pybackend_sdk.metrics import MetricFamily
        from pybackend_sdk.runtime import Runtime, bind_runtime

        class Other(Runtime):
            def create_metric_family(self, name, description, kind):
                return 1

            def create_metric(self, family, labels, buckets):
                return 2

            def drop_metric(self, handle):
                print("dropped", handle)

        bind_runtime(Other())
        family = MetricFamily("n", "d", MetricFamily.GAUGE)
        metric = family.Metric()
        itself = [metric, family]
        itself.append(itself)
    """
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": f"{root / 'sdk'}:{root / 'stub'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
