from __future__ import annotations

from pybackend_addons.ray.merging import labelled, merged_statistics


def statistics(count: int, last: int, *sizes: int) -> dict:
    return {
        "model_stats": [
            {
                "name": "add",
                "version": "1",
                "last_inference": last,
                "inference_count": count,
                "inference_stats": {"success": {"count": count, "ns": 10 * count}},
                "batch_stats": [{"batch_size": size, "compute_infer": {"count": 1, "ns": 5}} for size in sizes],
            }
        ]
    }


def test_counts_are_sums_and_the_last_inference_is_the_latest() -> None:
    merged = merged_statistics([statistics(2, 100, 1, 2), statistics(3, 90, 2, 4)])
    (model,) = merged["model_stats"]
    assert (model["inference_count"], model["last_inference"]) == (5, 100)
    assert model["inference_stats"]["success"] == {"count": 5, "ns": 50}
    assert {entry["batch_size"]: entry["compute_infer"]["count"] for entry in model["batch_stats"]} == {
        1: 1,
        2: 2,
        4: 1,
    }


def test_models_of_one_replica_only_are_kept() -> None:
    other = statistics(1, 1)
    other["model_stats"][0]["version"] = "2"
    merged = merged_statistics([statistics(2, 2), other])
    assert [(model["version"], model["inference_count"]) for model in merged["model_stats"]] == [("1", 2), ("2", 1)]


PAGE = """\
# HELP requests_total Requests, "all" of them
# TYPE requests_total counter
requests_total{model="a",path="{x}"} 1.0
requests_total{model="b"} 2.0
# HELP up Whether it runs
# TYPE up gauge
up 1.0
"""


def test_each_sample_gets_the_replica_and_each_family_is_described_once() -> None:
    page = labelled({"one": PAGE, "two": PAGE})
    assert page.splitlines() == [
        '# HELP requests_total Requests, "all" of them',
        "# TYPE requests_total counter",
        'requests_total{model="a",path="{x}",replica="one"} 1.0',
        'requests_total{model="b",replica="one"} 2.0',
        'requests_total{model="a",path="{x}",replica="two"} 1.0',
        'requests_total{model="b",replica="two"} 2.0',
        "# HELP up Whether it runs",
        "# TYPE up gauge",
        'up{replica="one"} 1.0',
        'up{replica="two"} 1.0',
    ]
