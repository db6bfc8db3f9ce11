"""Forests served without code: what is read from their files, and answers equal to the libraries' own."""

import shutil

import numpy as np
import pytest

from tests.support.frameworks import import_late
from tests.support.inference import infer
from tests.support.repositories import tensors
from tests.support.server import serving

xgboost = import_late("xgboost")
lightgbm = import_late("lightgbm")
treelite = import_late("treelite")
skops = import_late("skops.io")
import_late("sklearn")

pytestmark = [pytest.mark.thorough, pytest.mark.e2e]

FEATURES, CLASSES = 4, 3
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.random((200, FEATURES), np.float32)
BINARY = (ROWS[:, 0] > 0.5).astype(int)
CLASS = (ROWS[:, 0] * CLASSES).astype(int)
ASKED = RANDOM.random((7, FEATURES), np.float32)
ASKED[3, 1] = np.nan  # a missing value

PRELOAD = "xgboost,lightgbm,treelite.sklearn,skops.io,sklearn.ensemble"
"""One import for all processes."""

INPUT = f"input [ {tensors(input__0=('TYPE_FP32', [FEATURES]))} ]"


def settings(**values):
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"PRELOAD": PRELOAD, **values}.items()
    )


def answering(width, *more):
    outputs = {"output__0": ("TYPE_FP32", [width])}
    if more:
        outputs["treeshap_output"] = ("TYPE_FP32", list(more))
    return f"max_batch_size: 64 {INPUT} output [ {tensors(**outputs)} ]\n"


class Forests:
    """The forests of these tests, as their libraries hold them."""

    def __init__(self):
        matrix = xgboost.DMatrix(ROWS, BINARY)
        small = {"max_depth": 3, "nthread": 1}
        self.binary = xgboost.train({"objective": "binary:logistic", **small}, matrix, 5)
        self.squares = xgboost.train({"objective": "reg:squarederror", **small}, matrix, 2)
        self.linear = xgboost.train({"booster": "gblinear", "nthread": 1}, matrix, 2)
        several = {"objective": "multi:softmax", "num_class": CLASSES, **small}
        self.several = xgboost.train(several, xgboost.DMatrix(ROWS, CLASS), 4)
        quiet = {"verbose": -1, "num_leaves": 4, "num_threads": 1}
        self.light = lightgbm.train({"objective": "binary", **quiet}, lightgbm.Dataset(ROWS, BINARY), 4)
        several = {"objective": "multiclass", "num_class": CLASSES, **quiet}
        self.light_several = lightgbm.train(several, lightgbm.Dataset(ROWS, CLASS), 4)
        from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
        from sklearn.linear_model import LogisticRegression

        self.random = RandomForestClassifier(5, n_jobs=-1, random_state=0).fit(ROWS, CLASS)
        self.boosted = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(ROWS, BINARY)
        self.no_forest = LogisticRegression().fit(ROWS, BINARY)


@pytest.fixture(scope="module")
def forests():
    return Forests()


@pytest.fixture(scope="module")
def repository(tmp_path_factory, forests):
    models = tmp_path_factory.mktemp("fil") / "models"

    def place(name, file, config=""):
        """A model without its file; returns where that belongs."""
        version = models / name / "1"
        version.mkdir(parents=True)
        if config is not None:
            (models / name / "config.pbtxt").write_text('backend: "fil"\n' + (config or settings()))
        return str(version / file)

    forests.binary.save_model(place("churn", "xgboost.json", None))
    forests.several.save_model(place("several", "xgboost.ubj"))
    shutil.copy(models / "several" / "1" / "xgboost.ubj", place("old_name", "xgboost.model"))
    as_for_triton = settings(
        model_type="xgboost_json", is_classifier="true", threshold="0.8", storage_type="AUTO", algo="ALGO_AUTO"
    )
    forests.binary.save_model(
        place(
            "judged",
            "xgboost.json",
            answering(1, FEATURES + 1) + as_for_triton + "instance_group [ { kind: KIND_GPU } ]",
        )
    )
    forests.binary.save_model(place("weighed", "xgboost.ubj", settings(output_class="true", predict_proba="true")))
    forests.several.save_model(place("chosen", "xgboost.json", settings(output_class="true", threshold="0.5")))
    forests.light.save_model(place("light", "model.txt"))
    forests.light_several.save_model(
        place("light_several", "model.txt", answering(CLASSES, CLASSES, FEATURES + 1) + settings(model_type="lightgbm"))
    )
    treelite.frontend.from_lightgbm(forests.light_several).serialize(place("light_checkpoint", "checkpoint.tl"))
    skops.dump(forests.random, place("random", "model.skops"))
    skops.dump(forests.boosted, place("boosted", "model.skops", settings(predict_proba="true")))

    def write(name, file, content, config=""):
        with open(place(name, file, config), "wb") as target:
            target.write(content)

    tree_text = (models / "light" / "1" / "model.txt").read_bytes()
    write("garbage", "xgboost.json", b"\x80\x04not json")
    write("empty", "xgboost.ubj", b"")
    write("other_json", "xgboost.json", b'{"name": "no forest"}')
    write("truncated_ubj", "xgboost.ubj", bytes(forests.binary.save_raw("ubj"))[:900])
    write("truncated_text", "model.txt", tree_text[: tree_text.index(b"end of trees") - 20])
    write("other_text", "model.txt", b"a,b\n1,2\n")
    write("no_checkpoint", "checkpoint.tl", b"no checkpoint at all" * 50)
    write("pickled", "model.pkl", b"\x80\x04.")
    write("no_archive", "model.skops", b"PK")
    write("odd_name", "forest.bin", b"", 'default_model_filename: "forest.bin"\n' + settings())
    write("absent", "README", b"", settings(model_type="lightgbm"))
    forests.linear.save_model(place("linear", "xgboost.json"))
    skops.dump(forests.no_forest, place("no_forest", "model.skops"))
    forests.binary.save_model(place("misspelt", "xgboost.json", settings(treshold="0.5")))
    forests.binary.save_model(place("undecided", "xgboost.json", settings(is_classifier="perhaps")))
    forests.binary.save_model(place("too_wide", "xgboost.json", answering(2) + settings()))
    for name, tensor in {
        "other_name": {"x": ("TYPE_FP32", [FEATURES])},
        "other_type": {"input__0": ("TYPE_FP64", [FEATURES])},
    }.items():
        forests.binary.save_model(
            place(name, "xgboost.json", answering(1).replace(INPUT, f"input [ {tensors(**tensor)} ]") + settings())
        )
    forests.squares.save_model(place("no_probability", "xgboost.json", settings(predict_proba="true")))
    skops.dump(forests.random, place("unexplained", "model.skops", answering(CLASSES, FEATURES + 1) + settings()))
    return models


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--exit-on-error=false", "--gpu-models=cpu"), ready=False) as server:
        server.wait_for(r"of \d+ models are ready in", deadline_s=170)
        yield server


def ask(server, model, rows=ASKED, output="output__0"):
    return infer(server, model, {"input__0": rows}, outputs=[{"name": output, "parameters": {"binary_data": True}}])[
        output
    ]


def test_a_file_alone_is_served(server, forests):
    config = server.get("/v2/models/churn/config").json
    assert config["backend"] == "fil"
    assert config["max_batch_size"] == 32768
    assert [(entry["name"], entry["data_type"], entry["dims"]) for entry in config["input"]] == [
        ("input__0", "TYPE_FP32", [FEATURES])
    ]
    assert [(entry["name"], entry["data_type"], entry["dims"]) for entry in config["output"]] == [
        ("output__0", "TYPE_FP32", [1])
    ]
    assert np.array_equal(ask(server, "churn")[:, 0], forests.binary.inplace_predict(ASKED))
    assert np.array_equal(ask(server, "churn", ASKED[:1])[:, 0], forests.binary.inplace_predict(ASKED[:1]))
    assert ask(server, "churn", ASKED[:0]).shape == (0, 1)
    many = np.tile(ASKED, (2000, 1))  # enough for several threads
    assert np.array_equal(ask(server, "churn", many)[:, 0], forests.binary.inplace_predict(many))


def test_classes_have_probabilities(server, forests):
    expected = softmax_of(forests.several)
    assert np.array_equal(ask(server, "several"), expected)
    assert np.array_equal(ask(server, "old_name"), expected)
    assert np.array_equal(ask(server, "chosen")[:, 0], forests.several.inplace_predict(ASKED))


def softmax_of(booster):
    """What the booster answers as multi:softprob; multi:softmax answers only the class."""
    twin = booster.copy()
    twin.set_param({"objective": "multi:softprob"})
    return twin.inplace_predict(ASKED)


def test_the_parameters_of_existing_configurations_have_their_meaning(server, forests):
    probability = forests.binary.inplace_predict(ASKED)
    assert set(ask(server, "judged")[:, 0]) <= {0, 1}
    assert np.array_equal(ask(server, "judged")[:, 0], probability > 0.8)
    assert np.array_equal(ask(server, "weighed"), np.stack([1 - probability, probability], axis=1))
    for ignored in ("storage_type", "algo"):
        server.wait_for(f"model 'judged': parameters {ignored} has no effect: it concerns GPUs only")


def test_shapley_values_are_those_of_the_library(server, forests):
    expected = forests.binary.predict(xgboost.DMatrix(ASKED), pred_contribs=True)
    assert np.array_equal(ask(server, "judged", output="treeshap_output"), expected)
    expected = forests.light_several.predict(ASKED, pred_contrib=True).astype(np.float32)
    values = ask(server, "light_several", output="treeshap_output")
    assert np.array_equal(values, expected.reshape(len(ASKED), CLASSES, FEATURES + 1))


def test_lightgbm_answers_as_its_library(server, forests):
    for rows in (ASKED, ASKED[3:4], ASKED[:0]):
        expected = forests.light.predict(rows).astype(np.float32) if len(rows) else np.empty(0, np.float32)
        assert np.array_equal(ask(server, "light", rows)[:, 0], expected)
    expected = forests.light_several.predict(ASKED).astype(np.float32)
    assert np.array_equal(ask(server, "light_several"), expected)


def test_a_checkpoint_answers_as_treelite(server, forests):
    model = treelite.frontend.from_lightgbm(forests.light_several)
    expected = treelite.gtil.predict(model, ASKED).reshape(len(ASKED), CLASSES).astype(np.float32)
    assert np.array_equal(ask(server, "light_checkpoint"), expected)


def test_forests_of_scikit_learn_answer_as_it(server, forests):
    rows = np.nan_to_num(ASKED)
    assert np.array_equal(ask(server, "random", rows), forests.random.predict_proba(rows).astype(np.float32))
    expected = forests.boosted.predict_proba(rows)
    np.testing.assert_allclose(ask(server, "boosted", rows), expected, rtol=1e-6)


@pytest.fixture(scope="module")
def reasons(server):
    index = server.request("POST", "/v2/repository/index", {}).json
    return {entry["name"]: entry["reason"] for entry in index if entry.get("state") != "READY"}


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("garbage", ["xgboost.json cannot be read as model_type xgboost_json: it is neither JSON nor UBJSON"]),
        ("empty", ["xgboost.ubj cannot be read as model_type xgboost_ubj: it is empty"]),
        (
            "truncated_ubj",
            ["xgboost.ubj cannot be read as model_type xgboost_ubj: XGBoost finds no whole model in it ("],
        ),
        (
            "other_json",
            ["xgboost.json cannot be read as model_type xgboost_json: XGBoost finds no whole model in it ("],
        ),
        ("truncated_text", ["model.txt cannot be read as model_type lightgbm: it is truncated or damaged"]),
        ("other_text", ["model.txt", "a model of LightGBM begins with the line 'tree'"]),
        (
            "no_checkpoint",
            ["checkpoint.tl", "it is no checkpoint of treelite: Model.serialize('checkpoint.tl') writes one"],
        ),
        ("pickled", ["model.pkl is a pickle", "skops.io.dump", 'key: "PICKLE" value { string_value: "trusted" }']),
        ("no_archive", ["model.skops is not a whole file of skops"]),
        ("odd_name", ["the file name forest.bin does not tell what kind of forest is in it", "parameters model_type"]),
        ("absent", ["there is no model.txt in", "which holds README"]),
        ("linear", ["its booster is gblinear, which has no trees"]),
        ("no_forest", ["it holds a LogisticRegression", 'backend: "sklearn" serves any estimator']),
        ("misspelt", ["backend 'fil' has no parameter 'treshold': did you mean threshold?"]),
        ("undecided", ["parameters is_classifier must be true or false, it is 'perhaps'"]),
        ("too_wide", ["tensor 'output__0'", "[-1, 1]", "xgboost.json", "[-1, 2]"]),
        (
            "other_name",
            ["unexpected inference input 'x'", "allowed inputs are: input__0 TYPE_FP32 [-1, 4] (in xgboost.json"],
        ),
        ("other_type", ["expects datatype TYPE_FP64 for input 'input__0', model provides TYPE_FP32 (xgboost.json)"]),
        ("no_probability", ["predict_proba is true", "objective reg:squarederror gives no probabilities"]),
        ("unexplained", ["treelite, for scikit-learn computes no Shapley values", "treeshap_output"]),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(reasons, model, parts):
    for part in parts:
        assert part in reasons[model]
    assert "Traceback" not in reasons[model]
    assert "\n" not in reasons[model]


def test_nothing_else_is_refused(reasons, repository):
    served = {"churn", "several", "old_name", "judged", "weighed", "chosen", "light", "light_several"}
    served |= {"light_checkpoint", "random", "boosted"}
    assert {path.name for path in repository.iterdir()} - set(reasons) == served
