"""The registry of custom metrics: who shares what, what is refused, and what remains when stubs come and go."""

import math
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.calls.questions import on_metric_question
from pybackend.ipc import stub_messages as heard
from pybackend.observability import custom_metrics
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend.observability.metrics import lines
from pybackend_wire import metric_rules
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import MetricChange, MetricKind

COUNTER, GAUGE, HISTOGRAM = MetricKind
INCREMENT, SET, OBSERVE = MetricChange


@pytest.fixture
def metrics():
    return CustomMetrics()


@dataclass
class Stub:
    """A life of an instance, by what it asks of the registry."""

    metrics: CustomMetrics
    instance: str = "m_0"
    model_name: str = "m"

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other

    def family(self, name="n", kind=COUNTER, text="d"):
        return self.metrics.new_family(self, self.instance, self.model_name, name, text, kind)

    def series(self, name="n", kind=COUNTER, buckets=None, /, **labels):
        if kind is HISTOGRAM and buckets is None:
            buckets = [1.0]
        return self.metrics.new_series(self, self.family(name, kind), labels, buckets)

    def change(self, handle, value, change=INCREMENT):
        self.metrics.change(self, handle, change, value)

    def value(self, handle):
        return self.metrics.value(self, handle)

    def drop(self, handle):
        self.metrics.drop(self, handle)

    def dies(self):
        self.metrics.on_gone(self)


@pytest.fixture
def stub(metrics):
    return Stub(metrics)


def page(metrics):
    return "".join(lines(metrics.families()))


def samples(metrics):
    return [line for line in page(metrics).splitlines() if not line.startswith("#")]


# --- The page ---


def test_families_in_the_order_of_their_registration(metrics, stub):
    stub.change(stub.series("requests_total", COUNTER, model="m"), 2)
    stub.change(stub.series("depth", GAUGE), -1.5, SET)
    stub.change(stub.series("seconds", HISTOGRAM, [0.1, 1.0, 2.5, 1e6], step="a"), 0.3, OBSERVE)
    assert page(metrics).splitlines() == [
        "# HELP requests_total d",
        "# TYPE requests_total counter",
        'requests_total{model="m"} 2.0',
        "# HELP depth d",
        "# TYPE depth gauge",
        "depth -1.5",
        "# HELP seconds d",
        "# TYPE seconds histogram",
        'seconds_bucket{le="0.1",step="a"} 0.0',
        'seconds_bucket{le="1",step="a"} 1.0',
        'seconds_bucket{le="2.5",step="a"} 1.0',
        'seconds_bucket{le="1e+06",step="a"} 1.0',
        'seconds_bucket{le="+Inf",step="a"} 1.0',
        'seconds_sum{step="a"} 0.3',
        'seconds_count{step="a"} 1.0',
    ]


@pytest.mark.parametrize("name", ["_total", "a_total", "a_created", "a_info", "a_bucket", "a:b", "_"])
def test_names_are_shown_as_they_are_given(metrics, stub, name):
    stub.change(stub.series(name), 1)
    assert samples(metrics) == [f"{name} 1.0"]


def test_texts_cannot_break_the_page(metrics, stub):
    stub.family("n", GAUGE, 'a "b" \\ c\nd 1\n')
    stub.series("n", GAUGE, label='x"\n\\')
    assert page(metrics).split("\n") == [
        r'# HELP n a "b" \\ c\nd 1\n',
        "# TYPE n gauge",
        r'n{label="x\"\n\\"} 0.0',
        "",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (1e300, "1e+300")]
)
def test_values_that_are_no_ordinary_numbers(metrics, stub, value, shown):
    gauge = stub.series("n", GAUGE)
    stub.change(gauge, value, SET)
    assert samples(metrics) == [f"n {shown}"]
    assert repr(stub.value(gauge)) == repr(value)


def test_a_histogram_without_bounds(metrics, stub):
    histogram = stub.series("h", HISTOGRAM, [])
    stub.change(histogram, -3, OBSERVE)
    stub.change(histogram, math.inf, OBSERVE)
    assert samples(metrics) == ['h_bucket{le="+Inf"} 2.0', "h_sum +Inf", "h_count 2.0"]


def test_a_histogram_of_negative_values(metrics, stub):
    histogram = stub.series("h", HISTOGRAM, [-2.0, 0.0])
    for value in (-3, -2, -1, 1):
        stub.change(histogram, value, OBSERVE)
    assert samples(metrics) == [
        'h_bucket{le="-2"} 2.0',
        'h_bucket{le="0"} 3.0',
        'h_bucket{le="+Inf"} 4.0',
        "h_sum -5.0",
        "h_count 4.0",
    ]


# --- Sharing ---


def test_same_name_and_labels_are_one_series(metrics):
    one, other = Stub(metrics, "a_0", "a"), Stub(metrics, "b_0", "b")
    mine, yours = one.series(x="1", y="2"), other.series(y="2", x="1")
    different = other.series(x="1")
    one.change(mine, 1)
    other.change(yours, 2)
    assert one.value(mine) == other.value(yours) == 3
    assert other.value(different) == 0
    assert len(samples(metrics)) == 2


def test_the_first_description_is_kept(metrics, stub):
    stub.family(text="first")
    Stub(metrics, "other").family(text="second")
    stub.series()
    assert page(metrics).startswith("# HELP n first\n")


def test_the_first_buckets_of_a_series_are_kept_and_other_series_have_their_own(metrics, stub):
    for buckets, labels in (([1.0], {}), ([2.0], {}), ([3.0], {"a": "1"})):
        stub.series("h", HISTOGRAM, buckets, **labels)
    assert [line for line in samples(metrics) if "_bucket" in line] == [
        'h_bucket{le="1"} 0.0',
        'h_bucket{le="+Inf"} 0.0',
        'h_bucket{a="1",le="3"} 0.0',
        'h_bucket{a="1",le="+Inf"} 0.0',
    ]


def test_a_series_ends_with_the_last_that_holds_it_and_begins_anew(metrics):
    one, other = Stub(metrics), Stub(metrics, "m_1")
    first, second, third = one.series(), one.series(), other.series()
    one.change(first, 5)
    one.drop(first)
    other.drop(third)
    assert samples(metrics) == ["n 5.0"]
    assert one.value(second) == 5
    one.drop(second)
    assert page(metrics) == ""
    one.change(one.series(), 1)
    assert samples(metrics) == ["n 1.0"]


def test_the_name_of_a_family_stays_registered(metrics, stub):
    family = stub.family("n", COUNTER)
    stub.drop(family)
    stub.dies()
    metrics.on_retired("m_0")
    assert page(metrics) == ""
    with pytest.raises(InferenceError, match="metric family 'n' is registered as a counter, it cannot be a gauge too"):
        Stub(metrics).family("n", GAUGE)


# --- Refusals ---


@pytest.mark.parametrize("kind", MetricKind)
def test_a_family_of_another_kind(metrics, stub, kind):
    stub.family("n", kind)
    for other in set(MetricKind) - {kind}:
        with pytest.raises(InferenceError, match=f"metric family 'n' is registered as a {kind.name.lower()}") as caught:
            stub.family("n", other)
        assert caught.value.code is ErrorCode.ALREADY_EXISTS


@pytest.mark.parametrize("name", ["nv_inference_count", "nv_cpu_utilization", "pybackend_anything"])
def test_names_of_the_server(stub, name):
    with pytest.raises(InferenceError, match="are the server's own"):
        stub.family(name)


def test_other_names_that_begin_like_those_of_the_server(metrics, stub):
    stub.series("nv_llm_tokens")
    stub.series("nvme_reads")
    assert samples(metrics) == ["nv_llm_tokens 0.0", "nvme_reads 0.0"]


@pytest.mark.parametrize(
    ("first", "second"),
    [(("h", HISTOGRAM), ("h_count", COUNTER)), (("h_sum", GAUGE), ("h", HISTOGRAM))],
)
def test_families_whose_samples_would_be_mixed_up(stub, first, second):
    stub.family(*first)
    with pytest.raises(InferenceError, match=r"metric family '\w+' would have samples named 'h_\w+', as a"):
        stub.family(*second)


def test_names_and_labels_are_held_against_the_rules_again(stub):
    """A stub that is not ours could put lines of its own on the page."""
    with pytest.raises(InferenceError, match="is no name for a metric family"):
        stub.family("n 1\nm")
    with pytest.raises(InferenceError, match="is no name for a label"):
        stub.series(**{'a="1"} 1\nb': "2"})
    with pytest.raises(InferenceError, match="strictly increasing"):
        stub.series("h", HISTOGRAM, [2.0, 1.0])


def test_a_model_registers_so_many_families(metrics, stub, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MOST_FAMILIES", 2)
    for name in ("a", "b"):
        stub.family(name)
    with pytest.raises(InferenceError, match="model 'm' has registered 2 metric families, the maximum"):
        Stub(metrics, "m_1").family("c")
    stub.family("a")
    Stub(metrics, "other_0", "other").family("c")
    stub.family("c")


def test_a_stub_holds_so_many_metrics(metrics, stub, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MOST_HANDLES", 3)
    family = stub.family()
    handles = [metrics.new_series(stub, family, {"a": str(number)}, None) for number in range(2)]
    with pytest.raises(InferenceError, match="this instance holds 3 metrics and metric families") as caught:
        metrics.new_series(stub, family, {"a": "2"}, None)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert len(samples(metrics)) == 2
    stub.drop(handles[0])
    metrics.new_series(stub, family, {"a": "2"}, None)
    assert samples(metrics) == ['n{a="1"} 0.0', 'n{a="2"} 0.0']


def test_limits_are_those_that_the_manual_names():
    page = Path(__file__).resolve().parents[4] / "docs" / "authors" / "logging.md"
    manual = " ".join(page.read_text().split())
    for sentence in (
        f"may hold {custom_metrics.MOST_HANDLES:,} metrics and families",
        f"may take {custom_metrics.MOST_PAGE_BYTES >> 20} MB of the metrics page",
        f"may register {custom_metrics.MOST_FAMILIES:,} names",
        f"may have {metric_rules.MOST_TEXT:,} characters of",
        f"a histogram {metric_rules.MOST_BUCKETS:,} buckets",
        *(f"`{prefix}`" for prefix in custom_metrics.RESERVED_PREFIXES),
    ):
        assert sentence in manual


# --- Broken contracts ---


@pytest.mark.parametrize(
    "lie",
    [
        lambda stub: stub.change(99, 1),
        lambda stub: stub.change(0, 1),
        lambda stub: stub.value(99),
        lambda stub: stub.drop(99),
        lambda stub: stub.metrics.new_series(stub, 99, {}, None),
        lambda stub: stub.metrics.new_series(stub, stub.series(), {}, None),
        lambda stub: stub.metrics.new_series(stub, stub.family(), {}, [1.0]),
        lambda stub: stub.metrics.new_series(stub, stub.family("h", HISTOGRAM), {}, None),
        lambda stub: stub.change(stub.family(), 1),
        lambda stub: stub.value(stub.family()),
        lambda stub: stub.change(stub.series(), -1),
        lambda stub: stub.change(stub.series(), math.nan),
        lambda stub: stub.change(stub.series(), 1, SET),
        lambda stub: stub.change(stub.series(), 1, OBSERVE),
        lambda stub: stub.change(stub.series("g", GAUGE), 1, OBSERVE),
        lambda stub: stub.change(stub.series("h", HISTOGRAM), 1, INCREMENT),
        lambda stub: stub.change(stub.series("h", HISTOGRAM), 1, SET),
        lambda stub: stub.change(stub.series("h", HISTOGRAM), math.nan, OBSERVE),
        lambda stub: stub.value(stub.series("h", HISTOGRAM)),
    ],
)
def test_lies(metrics, lie):
    Stub(metrics, "honest").series()
    stub = Stub(metrics)
    with pytest.raises(RemoteProtocolError):
        lie(stub)


def test_metrics_of_others_are_not_ones_own(metrics):
    one, other = Stub(metrics), Stub(metrics)
    handle = one.series()
    with pytest.raises(RemoteProtocolError):
        other.change(handle, 1)


def test_a_metric_that_was_let_go_in_another_thread_just_now(metrics, stub):
    """An honest stub can say so: one thread deletes a family while another one uses a metric of it."""
    family, series = stub.family(), stub.series()
    stub.drop(series)
    stub.drop(family)
    stub.drop(series)
    stub.change(series, 1)
    with pytest.raises(InferenceError, match="the metric is deleted"):
        stub.value(series)
    with pytest.raises(InferenceError, match="the metric family is deleted"):
        metrics.new_series(stub, family, {}, None)


# --- Lives ---


def test_counters_and_histograms_go_on_when_an_instance_is_restarted(metrics):
    first = Stub(metrics)
    first.change(first.series(), 3)
    first.change(first.series("h", HISTOGRAM), 0.5, OBSERVE)
    before = samples(metrics)
    first.dies()
    assert samples(metrics) == before
    second = Stub(metrics)
    counter = second.series()
    assert second.value(counter) == 3
    second.change(counter, 1)
    assert samples(metrics)[0] == "n 4.0"
    second.drop(counter)
    assert [line for line in samples(metrics) if line.startswith("n")] == []


def test_a_restarted_instance_lets_go_like_any_other(metrics):
    """Nothing that a dead stub held remains once its successor holds and drops the same."""
    lives = [Stub(metrics) for _ in range(3)]
    for life in lives:
        life.series()
        last = life.series()
        life.dies()
    final = Stub(metrics)
    last = final.series()
    final.drop(last)
    assert page(metrics) == ""


def test_what_an_instance_leaves_behind_goes_with_its_model(metrics):
    stub, other = Stub(metrics), Stub(metrics, "m_1")
    stub.change(stub.series(a="only mine"), 1)
    stub.change(stub.series(a="ours"), 1)
    other.series(a="ours")
    stub.dies()
    assert len(samples(metrics)) == 2
    metrics.on_retired("m_0")
    assert samples(metrics) == ['n{a="ours"} 1.0']
    other.dies()
    metrics.on_retired("m_1")
    assert page(metrics) == ""


def test_a_stub_that_outlives_its_instance_leaves_nothing(metrics, stub):
    stub.series()
    metrics.on_retired("m_0")
    assert samples(metrics) == ["n 0.0"]
    stub.dies()
    assert page(metrics) == ""


def test_an_instance_keeps_so_many_series(metrics, monkeypatch):
    """A label that differs in every life would fill the page for as long as the model is loaded."""
    monkeypatch.setattr(custom_metrics, "MOST_HANDLES", 3)
    for life in range(5):
        stub = Stub(metrics)
        stub.series(pid=str(life))
        stub.dies()
    assert samples(metrics) == [f'n{{pid="{life}"}} 0.0' for life in (2, 3, 4)]


def test_gauges_tell_of_the_living(metrics):
    dead, alive = Stub(metrics), Stub(metrics, "m_1")
    dead.change(dead.series("mine", GAUGE), 7, SET)
    under_way = dead.series("under_way", GAUGE), alive.series("under_way", GAUGE)
    for _ in range(3):
        dead.change(under_way[0], 1)
    dead.change(under_way[0], -1)
    alive.change(under_way[1], 1)
    assert samples(metrics) == ["mine 7.0", "under_way 3.0"]
    dead.dies()
    assert samples(metrics) == ["under_way 1.0"]
    restarted = Stub(metrics)
    assert restarted.value(restarted.series("mine", GAUGE)) == 0


def test_what_was_added_to_a_gauge_before_it_was_set_is_no_longer_in_it(metrics):
    dead, alive = Stub(metrics), Stub(metrics, "m_1")
    gauge, same = dead.series("g", GAUGE), alive.series("g", GAUGE)
    dead.change(gauge, 5)
    alive.change(same, 10, SET)
    dead.change(gauge, 2)
    dead.dies()
    assert samples(metrics) == ["g 10.0"]
    dead = Stub(metrics)
    dead.change(dead.series("g", GAUGE), 4)
    alive.change(same, 20, SET)
    dead.dies()
    assert samples(metrics) == ["g 20.0"]


def test_a_gauge_that_was_driven_to_infinity_stays_there(metrics):
    dead, alive = Stub(metrics), Stub(metrics, "m_1")
    gauge, same = dead.series("g", GAUGE), alive.series("g", GAUGE)
    dead.change(gauge, math.inf)
    dead.dies()
    assert alive.value(same) == math.inf


def test_stubs_without_metrics_come_and_go(metrics, stub):
    stub.dies()
    metrics.on_retired("m_0")
    assert page(metrics) == ""


# --- Questions ---


@dataclass(eq=False)
class Caller:
    """Where answers go."""

    instance_name: str = "m_0"
    model_name: str = "m"
    instance: object = "m_0"
    answers: dict[int, object] = field(default_factory=dict)

    def answer(self, call, value):
        self.answers[call] = value

    def refuse(self, call, error):
        self.answers[call] = error.message


def test_questions_are_answered(metrics):
    caller = Caller()
    for question in (
        heard.NewFamily(1, "n", "d", GAUGE),
        heard.NewMetric(2, 1, {"a": "b"}, None),
        heard.ChangeMetric(2, SET, "-inf"),
        heard.ReadMetric(3, 2),
        heard.ChangeMetric(2, SET, 1.5),
        heard.ChangeMetric(2, INCREMENT, 1.0),
        heard.ReadMetric(4, 2),
        heard.NewFamily(5, "n", "d", COUNTER),
        heard.DropMetric(2),
        heard.ReadMetric(6, 2),
    ):
        on_metric_question(metrics, caller, question)
    refused = caller.answers.pop(5)
    assert caller.answers == {1: 1, 2: 2, 3: -math.inf, 4: 2.5, 6: "the metric is deleted."}
    assert refused.startswith("metric family 'n' is registered as a gauge")
    with pytest.raises(RemoteProtocolError):
        on_metric_question(metrics, caller, heard.ReadMetric(7, 3))
    on_metric_question(metrics, caller, heard.NewFamily(8, "c", "d", COUNTER))
    on_metric_question(metrics, caller, heard.NewMetric(9, 3, {}, None))
    metrics.on_gone(caller)
    assert samples(metrics) == ["c 0.0"]
    metrics.on_retired("m_0")
    assert page(metrics) == ""


# --- The size of the page ---


def fill(make):
    """Make series until one is refused; how many there were before."""
    numbers = count()
    with pytest.raises(InferenceError, match="bytes of the metrics page") as refused:
        all(make(number) for number in numbers)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    return next(numbers) - 1


WIDE = {
    "buckets": lambda stub, number: stub.series("h", HISTOGRAM, [float(n) for n in range(1000)], n=str(number)),
    "labels": lambda stub, number: stub.series("c", COUNTER, n=f"{number}" + '"' * 8000),
    "characters": lambda stub, number: stub.series("c", COUNTER, n=f"{number}" + "\U0001f600" * 8000),
    "texts": lambda stub, number: stub.family(f"f{number}", COUNTER, "\n" * 8000),
}


@pytest.mark.parametrize("what", WIDE)
def test_a_model_takes_a_bounded_part_of_the_page(metrics, what, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MOST_PAGE_BYTES", 400_000)
    stub, other = Stub(metrics), Stub(metrics, "other_0", "other")
    made = fill(lambda number: WIDE[what](stub, number))
    assert made > 4
    assert len(page(metrics).encode()) <= custom_metrics.MOST_PAGE_BYTES
    assert fill(lambda number: WIDE[what](stub, made + number)) == 0
    other.change(other.series("small", COUNTER), 1)
    assert "small 1.0" in samples(metrics)


def test_what_is_deleted_leaves_its_part_of_the_page(metrics, stub, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MOST_PAGE_BYTES", 200_000)
    wide = WIDE["buckets"]
    made = fill(lambda number: wide(stub, number))
    for _ in range(3):
        again = Stub(metrics, "m_2")
        stub.dies()
        metrics.on_retired("m_0")
        assert samples(metrics) == []
        assert fill(lambda number, stub=again: wide(stub, number)) == made
        again.dies()
        metrics.on_retired("m_2")
