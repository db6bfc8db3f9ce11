"""Custom metrics from a model to the page that Prometheus reads, and what becomes of them when models end."""

import os
import signal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pybackend.observability.custom_metrics import RESERVED_PREFIXES
from tests.faults.victims import Asker, told
from tests.support.gates import GATE, Gate, wait_until
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import write_model
from tests.support.served import served
from tests.support.server import serving

FAILED = "Failed to process the request for model 'laboratory_0_0', message: "
CONFIG = """
backend: "python"
input [ { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
COUNTING = """
import os

class TritonPythonModel:
    def initialize(self, args):
        name = args["model_name"]
        self.requests = pb_utils.MetricFamily(name + "_requests_total", "Requests", pb_utils.MetricFamily.COUNTER)
        self.request_count = self.requests.Metric({"model": name})
        self.busy = pb_utils.MetricFamily(name + "_busy", "Requests under way", pb_utils.MetricFamily.GAUGE)
        self.busy_count = self.busy.Metric()
        self.sizes = pb_utils.MetricFamily(name + "_sizes", "Sizes", pb_utils.MetricFamily.HISTOGRAM)
        self.size = self.sizes.Metric(buckets=[10, 100])
        self.instances = pb_utils.MetricFamily(name + "_starts_total", "Starts", pb_utils.MetricFamily.COUNTER)
        self.start_count = self.instances.Metric()
        self.start_count.increment(1)

    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy().item().decode()) for request in requests]

    def answer(self, command):
        self.request_count.increment(1)
        self.busy_count.increment(1)
        self.size.observe(len(command))
        if command != "die":
            self.busy_count.increment(-1)
        text = f"{os.getpid()} {self.request_count.value():.0f}"
        if command == "die":
            os.kill(os.getpid(), 9)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], dtype=object))])
"""
"""Counts requests, requests under way and starts; answers with its process id and the number of requests."""


@served()
def server(repository):
    write_laboratory(repository)
    write_laboratory(repository, "neighbour")
    write_model(repository, "twins", COUNTING, CONFIG + "instance_group { kind: KIND_CPU count: 2 }")
    write_model(repository, "mortal", COUNTING, CONFIG)


@pytest.fixture
def run(server):
    """Runs code in a model with ``refusal(function)``, which is the text of what it raises; returns the texts it
    returns."""
    return runner(server, "laboratory")


def runner(server, model):
    send = laboratory(server, model)
    prelude = """
F = pb_utils.MetricFamily

def refusal(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except pb_utils.TritonModelException as error:
        return str(error)
    raise AssertionError("it is not refused")

def page():
    import urllib.request
    with urllib.request.urlopen("http://127.0.0.1:METRICS/metrics") as reply:
        return reply.read().decode()

""".replace("METRICS", str(server.metrics_port))

    def run(code):
        body = prelude + "def body():\n" + "\n".join("    " + line for line in code.splitlines())
        answer = send(body + "\nreturn out(OUT=text(*(body() or ())))")
        return [element.decode() for element in answer["OUT"]]

    return run


def families(server):
    """What Prometheus' own parser makes of the page."""
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.spec("pb-M01", "srv-M08")
def test_each_kind_counts_as_it_should(server, run):
    values = run(
        """
counter = F("kinds_counter_total", "Counts up", F.COUNTER)
gauge = F(name="kinds_gauge", description="Up and down", kind=F.GAUGE)
histogram = F("kinds_histogram", "Sorts by size", F.HISTOGRAM)
state["families"] = counter, gauge, histogram
state["metrics"] = c, g, h = [
    counter.Metric(labels={"step": "first"}),
    gauge.Metric(),
    histogram.Metric(labels={"step": "first"}, buckets=[0.1, 1.0, 2.5]),
]
c.increment(1)
c.increment(0)
c.increment(1.5)
g.set(10)
g.increment(2)
g.increment(-4.5)
for value in (0.1, 0.5, 2, 100):
    h.observe(value)
return repr(c.value()), repr(g.value())
"""
    )
    assert values == ["2.5", "7.5"]
    found = server.metrics()
    assert {name: value for name, value in found.items() if name.startswith("kinds_")} == {
        'kinds_counter_total{step="first"}': 2.5,
        "kinds_gauge": 7.5,
        'kinds_histogram_bucket{le="0.1",step="first"}': 1,
        'kinds_histogram_bucket{le="1",step="first"}': 2,
        'kinds_histogram_bucket{le="2.5",step="first"}': 3,
        'kinds_histogram_bucket{le="+Inf",step="first"}': 4,
        'kinds_histogram_sum{step="first"}': 102.6,
        'kinds_histogram_count{step="first"}': 4,
    }
    parsed = families(server)
    kinds = {name: (family.type, family.documentation) for name, family in parsed.items() if name.startswith("kinds_")}
    assert kinds == {
        "kinds_counter": ("counter", "Counts up"),
        "kinds_gauge": ("gauge", "Up and down"),
        "kinds_histogram": ("histogram", "Sorts by size"),
    }
    assert list(parsed).index("nv_cpu_utilization") < list(parsed).index("kinds_counter"), "the server's own come first"


@pytest.mark.spec("pb-M01")
def test_what_a_kind_cannot_do(run):
    texts = run(
        """
families = [F(f"cannot_{kind.name.lower()}", "d", kind) for kind in (F.COUNTER, F.GAUGE, F.HISTOGRAM)]
counter, gauge, histogram = families[0].Metric(), families[1].Metric(), families[2].Metric(buckets=[1])
return (
    refusal(counter.increment, -1), refusal(counter.set, 1), refusal(counter.observe, 1),
    refusal(gauge.observe, 1),
    refusal(histogram.increment, 1), refusal(histogram.set, 1), refusal(histogram.value),
    counter.value(), gauge.value(),
)
"""
    )
    assert texts == [
        f"Failed to increment metric value: {FAILED}TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically "
        "by non-negative values.",
        f"Failed to set metric value: {FAILED}TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
        f"Failed to observe metric value: {FAILED}TRITONSERVER_METRIC_KIND_COUNTER does not support Observe",
        f"Failed to observe metric value: {FAILED}TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
        f"Failed to increment metric value: {FAILED}TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment",
        f"Failed to set metric value: {FAILED}TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set",
        f"Failed to get metric value: {FAILED}TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value",
        "0.0",
        "0.0",
    ]


@pytest.mark.spec("pb-M01")
def test_labels_and_buckets_that_cannot_be(run):
    texts = run(
        """
counter, histogram = F("arguments_counter", "d", F.COUNTER), F("arguments_histogram", "d", F.HISTOGRAM)
empty = histogram.Metric(buckets=[])
return (
    refusal(counter.Metric, labels=[("a", "b")]),
    refusal(counter.Metric, labels={"a": 1}),
    refusal(counter.Metric, buckets=[1]),
    refusal(histogram.Metric),
    refusal(histogram.Metric, buckets=(1, 2)),
    refusal(histogram.Metric, buckets=[2, 1]),
    refusal(histogram.Metric, buckets=[1, 1]),
    refusal(counter.Metric, labels={"a b": "c"}),
    refusal(F, "a b", "d", F.COUNTER),
    refusal(F, "nv_inference_count", "d", F.COUNTER),
    "arguments_histogram_count 0.0" in page(),
)
"""
    )
    create, family = f"Error when creating Metric: {FAILED}", f"Error when creating MetricFamily: {FAILED}"
    for text, beginning in zip(
        texts,
        [
            "Failed to create metric. Labels must be a dictionary.",
            "Failed to create metric. Labels must be a dictionary.",
            "Failed to create metric. Unexpected buckets found.",
            "Failed to create metric. Missing required buckets.",
            "Failed to create metric. Buckets must be a list.",
            f"{create}the bounds of a histogram's buckets must be strictly increasing, but 1.0 follows 2.0.",
            f"{create}the bounds of a histogram's buckets must be strictly increasing, but 1.0 follows 1.0.",
            f"{create}'a b' is no name for a label",
            f"{family}'a b' is no name for a metric family",
            f"{family}metric families whose names begin with 'nv_inference_' are the server's own",
            "True",
        ],
        strict=True,
    ):
        assert text.startswith(beginning)


def test_numbers_that_are_not_finite(server, run):
    values = run(
        """
state["odd"] = gauges = F("odd_gauge", "d", F.GAUGE)
state["odd metrics"] = metrics = [gauges.Metric({"value": str(value)}) for value in (math.inf, -math.inf, math.nan)]
for metric, value in zip(metrics, (math.inf, -math.inf, math.nan)):
    metric.set(value)
counter = F("odd_counter", "d", F.COUNTER)
return [metric.value() for metric in metrics] + [refusal(counter.Metric().increment, math.nan)]
"""
    )
    assert values[:3] == ["inf", "-inf", "nan"]
    assert "can only be incremented monotonically by non-negative values" in values[3]
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    for value, shown in (("inf", "+Inf"), ("-inf", "-Inf"), ("nan", "NaN")):
        assert f'odd_gauge{{value="{value}"}} {shown}\n' in page


def test_metrics_may_be_counted_in_any_thread(server, run):
    (value,) = run(
        """
state["threads"] = family = F("threads_total", "d", F.COUNTER)
state["threads metric"] = metric = family.Metric()
def count():
    for _ in range(200):
        metric.increment(1)
        assert metric.value() > 0
threads = [threading.Thread(target=count) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
return (metric.value(),)
"""
    )
    assert float(value) == server.metrics()["threads_total"] == 800


def test_what_a_response_follows_is_on_the_page_with_it(server, run):
    """Changes are not answered, yet whoever has the response sees them: they travel in order."""
    for number in range(1, 21):
        run(
            """
family = state.setdefault("order", F("order_total", "d", F.COUNTER))
state.setdefault("order metric", family.Metric()).increment(1)
"""
        )
        assert server.metrics()["order_total"] == number


@pytest.mark.spec("pb-M02")
def test_instances_share_their_series_and_read_the_common_value(server):
    assert server.metrics()["twins_starts_total"] == 2
    pids, counts = set(), []
    with Asker(server, 4) as asker:
        while len(pids) < 2:
            assert len(counts) < 2000, "one of the instances gets no work"
            for future in [asker.ask("twins", "count") for _ in range(8)]:
                reply = future.result()
                pid, count = reply.json["outputs"][0]["data"][0].split()
                pids.add(pid)
                counts.append(int(count))
    assert max(counts) == len(counts)
    found = server.metrics()
    assert found['twins_requests_total{model="twins"}'] == found["twins_sizes_count"] == len(counts)
    assert found["twins_busy"] == 0


@pytest.mark.spec("pb-M02")
def test_models_share_series_of_the_same_name_and_labels(server):
    code = """
state["shared"] = family = F("shared_total", "{0}", F.COUNTER)
state["shared metrics"] = shared, own = family.Metric({{"a": "1", "b": "2"}}), family.Metric({{"model": "{0}"}})
shared.increment({1})
own.increment({1})
return shared.value(), own.value()
"""
    assert runner(server, "laboratory")(code.format("laboratory", 3)) == ["3.0", "3.0"]
    assert runner(server, "neighbour")(code.format("neighbour", 4)) == ["7.0", "4.0"]
    assert runner(server, "laboratory")('return (state["shared metrics"][0].value(),)') == ["7.0"]
    found = {name: value for name, value in server.metrics().items() if name.startswith("shared_total")}
    assert found == {
        'shared_total{a="1",b="2"}': 7,
        'shared_total{model="laboratory"}': 3,
        'shared_total{model="neighbour"}': 4,
    }
    assert families(server)["shared"].documentation == "laboratory"


@pytest.mark.spec("pb-M03")
def test_duplicates(server, run):
    texts = run(
        """
first, second = F("dup_total", "first", F.COUNTER), F("dup_total", "second", F.COUNTER)
one, other, third = first.Metric({"a": "b"}), first.Metric({"a": "b"}), second.Metric({"a": "b"})
one.increment(1)
other.increment(2)
values = [one.value(), other.value(), third.value()]
del one, other
values.append('dup_total{a="b"} 3.0' in page())
third.increment(1)
values.append(third.value())
del third
values.append("dup_total" in page())
fourth = first.Metric({"a": "b"})
return values + [fourth.value()]
"""
    )
    assert texts == ["3.0", "3.0", "3.0", "True", "4.0", "False", "0.0"]
    assert not [name for name in server.metrics() if name.startswith("dup")]


@pytest.mark.spec("pb-M03")
def test_a_name_has_one_kind_for_ever(run):
    texts = run(
        """
kinds = (F.COUNTER, F.GAUGE, F.HISTOGRAM)
found = []
for kind in kinds:
    family = F("conflict_" + kind.name.lower(), "d", kind)
    found += [refusal(F, "conflict_" + kind.name.lower(), "d", other) for other in kinds if other is not kind]
    del family
    found += [refusal(F, "conflict_" + kind.name.lower(), "d", other) for other in kinds if other is not kind]
return found
"""
    )
    assert len(texts) == 12
    for text in texts:
        assert text.startswith(f"Error when creating MetricFamily: {FAILED}metric family 'conflict_")


@pytest.mark.spec("pb-M03")
def test_metrics_end_with_their_family(server, run):
    texts = run(
        """
found = []
for kind in (F.COUNTER, F.GAUGE, F.HISTOGRAM):
    family = F("lifetime_" + kind.name.lower(), "d", kind)
    metric = family.Metric(buckets=[1] if kind is F.HISTOGRAM else None)
    found.append("lifetime_" + kind.name.lower() in page())
    del family
    for operation in (metric.increment, metric.set, metric.observe):
        found.append(refusal(operation, 1))
    found.append(refusal(metric.value))
    found.append("lifetime" in page())
return found
"""
    )
    error = (
        "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
        "be deleted AFTER its corresponding 'Metric' objects have been deleted."
    )
    assert texts == ["True", *[error] * 4, "False"] * 3


def test_there_is_an_end_to_what_a_model_can_make(server, run):
    (text,) = run(
        """
family, kept = F("endless_total", "d", F.COUNTER), []
def endless():
    while True:
        kept.append(family.Metric({"number": str(len(kept))}))
return (refusal(endless),)
"""
    )
    assert text.startswith(f"Error when creating Metric: {FAILED}this instance holds 10000 metrics and metric families")
    assert not [name for name in server.metrics() if name.startswith("endless")]
    assert server.get("/v2/health/ready").status == 200


def test_a_fork_of_a_model_drops_nothing(server, run):
    values = run(
        """
state["fork"] = family = F("fork_total", "d", F.COUNTER)
state["fork metric"] = metric = family.Metric()
metric.increment(5)
pid = os.fork()
if not pid:
    try:
        state.clear()
        del family, metric
        gc.collect()
    finally:
        os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
metric.increment(1)
return (metric.value(),)
"""
    )
    assert values == ["6.0"]
    assert server.metrics()["fork_total"] == 6


@pytest.mark.spec("pb-M04")
def test_counters_go_on_when_an_instance_is_restarted_and_gauges_begin_anew(server):
    for _ in range(3):
        told(server, "mortal", "count")
    before = server.metrics()
    assert before["mortal_busy"] == 0
    with Asker(server, 1) as asker:
        assert asker.ask("mortal", "die").result().status == 500
    server.wait_for("instance 'mortal_0' is restarted")
    server.wait_until("/v2/models/mortal/ready", 200)
    after = server.metrics()
    assert after['mortal_requests_total{model="mortal"}'] == 4
    assert after["mortal_starts_total"] == 2
    assert after["mortal_sizes_count"] == 4
    assert after["mortal_busy"] == 0, "what a dead process had under way is under way for ever"
    pid, count = told(server, "mortal", "count").split()
    assert int(count) == 5
    assert server.metrics()['mortal_requests_total{model="mortal"}'] == 5
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: server.metrics()["mortal_starts_total"] == 3, "it is not restarted")


@pytest.mark.faults
def test_a_process_that_changes_metrics_which_are_not_its_own_is_killed(server, snapshot):
    send = laboratory(server, "neighbour")
    answer = send("from pybackend_sdk.runtime import current_runtime\ncurrent_runtime().increment_metric(10**6, 1.0)")
    assert answer.status == 500
    assert answer.error == snapshot
    server.wait_for("instance 'neighbour_0_0' is restarted")
    server.wait_until("/v2/models/neighbour/ready", 200)


@pytest.mark.spec("pb-M04")
@pytest.mark.faults
def test_while_an_instance_is_down_its_counters_are_there(tmp_path):
    code = COUNTING.replace(
        "def initialize(self, args):",
        """def initialize(self, args):
        if os.path.exists(os.path.join(args["model_repository"], "gated")):
            pass_gate(args["model_repository"], "initialize")""",
    )
    directory = write_model(tmp_path, "gated", GATE + code, CONFIG)
    with serving(tmp_path) as server:
        pid, _ = told(server, "gated", "count").split()
        gate = Gate(directory, "initialize")
        (directory / "gated").touch()
        os.kill(int(pid), signal.SIGKILL)
        gate.wait_reached()
        found = server.metrics()
        assert found['gated_requests_total{model="gated"}'] == 1
        assert found["gated_sizes_count"] == 1
        assert "gated_busy" not in found
        gate.open()
        server.wait_until("/v2/models/gated/ready", 200)
        assert told(server, "gated", "count").split()[1] == "2"
        assert server.metrics()["gated_busy"] == 0


@pytest.mark.spec("pb-M04")
def test_a_model_that_is_unloaded_takes_its_series_along(tmp_path):
    """Those that a dead process left behind too; series that others share stay, with their value."""
    write_laboratory(tmp_path)
    directory = write_model(tmp_path, "guest", COUNTING, CONFIG)
    with serving(tmp_path, flags=("--model-control-mode=explicit", "--load-model=laboratory")) as server:
        assert all(name.startswith(RESERVED_PREFIXES) for name in server.metrics()), "a model could register that name"
        run = runner(server, "laboratory")
        run(
            """
pb_utils.load_model("guest")
state["shared"] = family = F("guest_starts_total", "d", F.COUNTER)
state["shared metric"] = family.Metric()
"""
        )
        assert {name.partition("{")[0] for name in server.metrics() if name.startswith("guest")} == {
            "guest_requests_total",
            "guest_busy",
            "guest_sizes_bucket",
            "guest_sizes_sum",
            "guest_sizes_count",
            "guest_starts_total",
        }
        (directory / "1" / "model.py").write_text("raise ImportError('on purpose')")  # no restart succeeds
        pid, _ = told(server, "guest", "count").split()
        os.kill(int(pid), signal.SIGKILL)
        server.wait_for("instance 'guest_0' cannot be restarted")
        assert server.metrics()['guest_requests_total{model="guest"}'] == 1
        run('pb_utils.unload_model("guest")')
        wait_until(
            lambda: [name for name in server.metrics() if name.startswith("guest")] == ["guest_starts_total"],
            "series of a model that is unloaded stay",
        )
        assert server.metrics()["guest_starts_total"] == 1


def test_a_long_page_comes_in_parts_and_whole(server):
    """It is nowhere as a whole on the way; and beyond a size, a model is refused what would make it longer."""
    run = runner(server, "neighbour")
    made, refused = run(
        """
family = state["family"] = F("wide", "Wide", F.HISTOGRAM)
wide = state["wide"] = []
def make():
    while len(wide) < 100:
        wide.append(family.Metric({"n": str(len(wide)), "text": "x" * 1000}, buckets=list(range(500))))
return str(len(wide)), refusal(make), str(len(wide))
"""
    )[1:][::-1]
    assert 1 < int(made) < 10
    assert "bytes of the metrics page" in refused
    reply = server.request("GET", "/metrics", port=server.metrics_port)
    assert reply.headers["transfer-encoding"] == "chunked"
    wide = [line for line in reply.body.splitlines() if line.startswith(b"wide_bucket")]
    assert len(wide) == 501 * int(made)
    assert reply.body.endswith(b"\n")
    run('del state["wide"], state["family"]')
    wait_until(
        lambda: "content-length" in server.request("GET", "/metrics", port=server.metrics_port).headers,
        "the metrics stay on the page",
    )
