"""Estimators of scikit-learn served without code: what is read from their files, and answers equal to the library's
own."""

import pickle

import numpy as np
import pytest

from tests.support.frameworks import import_late
from tests.support.inference import infer
from tests.support.repositories import tensors
from tests.support.server import serving

skops = import_late("skops.io")
pandas = import_late("pandas")
joblib = import_late("joblib")
import_late("sklearn")

pytestmark = [pytest.mark.thorough, pytest.mark.e2e]

RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.random((60, 3))
ASKED = RANDOM.random((5, 3))
COLORS = RANDOM.choice(["red", "green", "grün"], 60)
COLUMNS = {"age": NUMBERS[:, 0] * 60, "color": COLORS, "rooms": RANDOM.integers(0, 3, 60), "note": COLORS}
TEXTS = ["a good day", "a bad day", "good", "bad"] * 3


def settings(**values):
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"PRELOAD": "sklearn.ensemble,sklearn.compose,skops.io,pandas", **values}.items()
    )


class Estimators:
    """The estimators of these tests."""

    def __init__(self):
        from sklearn.cluster import KMeans
        from sklearn.compose import ColumnTransformer
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

        classes = (NUMBERS[:, 0] * 3).astype(int)
        self.words = LogisticRegression().fit(NUMBERS, np.array(["low", "mid", "high"])[classes])
        self.line = Ridge().fit(NUMBERS, NUMBERS @ [1, 2, 3])
        self.lines = Ridge().fit(NUMBERS, NUMBERS[:, :2])
        self.named = Ridge().fit(pandas.DataFrame(NUMBERS, columns=["a", "b", "c"]), NUMBERS[:, 0])
        self.scaler = StandardScaler().fit(NUMBERS)
        self.groups = KMeans(2, n_init=1, random_state=0).fit(NUMBERS)
        self.parallel = RandomForestClassifier(3, n_jobs=-1, random_state=0).fit(NUMBERS, classes)
        self.encoder = OneHotEncoder().fit(COLORS.reshape(-1, 1))
        columns = ColumnTransformer(
            [
                ("numbers", StandardScaler(), ["age"]),
                ("categories", make_pipeline(OneHotEncoder(handle_unknown="ignore")), ["color", "rooms"]),
                ("texts", TfidfVectorizer(), "note"),
            ]
        )
        table = pandas.DataFrame(COLUMNS)
        self.table = make_pipeline(columns, LogisticRegression()).fit(
            table, np.where(table["age"] > 30, "old", "young")
        )
        self.table_asked = table.iloc[:5].reset_index(drop=True)
        self.text = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, [1, 0] * 6)
        self.function = make_pipeline(FunctionTransformer(np.nan_to_num), Ridge()).fit(NUMBERS, NUMBERS[:, 0])


@pytest.fixture(scope="module")
def estimators():
    return Estimators()


def one_output(name, datatype, *dims):
    return (
        f"max_batch_size: 8 input [ {tensors(rows=('TYPE_FP32', [3]))} ] "
        f"output [ {tensors(**{name: (datatype, list(dims))})} ]\n"
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory, estimators):
    models = tmp_path_factory.mktemp("sklearn") / "models"

    def place(name, config="", file="model.skops"):
        """A model without its file; returns where that belongs."""
        version = models / name / "1"
        version.mkdir(parents=True)
        if config is not None:
            (models / name / "config.pbtxt").write_text('backend: "sklearn"\n' + (config or settings()))
        return str(version / file)

    skops.dump(estimators.words, place("words", None))
    skops.dump(estimators.line, place("line", one_output("guess", "TYPE_FP32", 1) + settings(METHODS="predict")))
    skops.dump(estimators.lines, place("lines"))
    named = f"max_batch_size: 8 input [ {tensors(**dict.fromkeys('cab', ('TYPE_FP64', [1])))} ]\n"
    skops.dump(estimators.named, place("named", named + settings()))
    skops.dump(estimators.scaler, place("scaler"))
    skops.dump(estimators.groups, place("groups", settings(METHODS="predict, transform")))
    skops.dump(estimators.parallel, place("parallel", one_output("probabilities", "TYPE_FP64", 3) + settings()))
    skops.dump(estimators.encoder, place("encoder"))
    skops.dump(estimators.table, place("table"))
    skops.dump(estimators.text, place("text"))
    skops.dump(estimators.function, place("allowed", settings(TRUSTED_TYPES="numpy.nan_to_num")))
    joblib.dump(estimators.line, place("trusted", settings(PICKLE="trusted"), "model.joblib"))

    skops.dump(estimators.function, place("not_allowed"))
    joblib.dump(estimators.line, place("joblib", file="model.joblib"))
    with open(place("pickled", settings(PICKLE="yes"), "model.pkl"), "wb") as file:
        pickle.dump(estimators.line, file)
    with open(place("other_pickle", settings(PICKLE="trusted"), "model.pkl"), "wb") as file:
        file.write(b"no pickle")
    with open(place("no_pickle", settings(PICKLE="trusted"), "model.joblib"), "wb") as file:
        file.write(b"<!DOCTYPE html>")
    with open(place("truncated"), "wb") as file:
        file.write((models / "words" / "1" / "model.skops").read_bytes()[:500])
    skops.dump(estimators.line, place("no_method", settings(METHODS="predict_proba")))
    skops.dump(estimators.words, place("other_output", one_output("answer", "TYPE_FP32", 1) + settings()))
    skops.dump(estimators.words, place("other_type", one_output("label", "TYPE_INT64", 1) + settings()))
    skops.dump(estimators.words, place("other_width", one_output("probabilities", "TYPE_FP64", 2) + settings()))
    several = f"max_batch_size: 8 input [ {tensors(x=('TYPE_FP64', [1]), y=('TYPE_FP64', [1]))} ]\n"
    skops.dump(estimators.words, place("several_inputs", several + settings()))
    skops.dump([1, 2], place("no_estimator"))
    return models


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"of \d+ models are ready in", deadline_s=170)
        yield server


def signature(server, model):
    config = server.get(f"/v2/models/{model}/config").json
    return [
        [(entry["name"], entry["data_type"].removeprefix("TYPE_"), entry["dims"]) for entry in config[side]]
        for side in ("input", "output")
    ]


def texts(array):
    return [element.decode() for element in array.reshape(-1)]


def strings(values):
    return np.array([value.encode() for value in values], object).reshape(-1, 1)


def test_a_file_alone_is_served(server, estimators):
    config = server.get("/v2/models/words/config").json
    assert config["backend"] == "sklearn"
    assert config["max_batch_size"] == 32768
    assert signature(server, "words") == [
        [("input", "FP64", [3])],
        [("label", "STRING", [1]), ("probabilities", "FP64", [3])],
    ]
    answer = infer(server, "words", {"input": ASKED})
    assert texts(answer["label"]) == list(estimators.words.predict(ASKED))
    assert np.array_equal(answer["probabilities"], estimators.words.predict_proba(ASKED))
    answer = infer(server, "words", {"input": ASKED[:0]})
    assert [answer[name].shape for name in ("label", "probabilities")] == [(0, 1), (0, 3)]


def test_each_column_is_an_input(server, estimators):
    inputs = [("age", "FP64", [1]), ("color", "STRING", [1]), ("rooms", "INT64", [1]), ("note", "STRING", [1])]
    assert signature(server, "table") == [inputs, [("label", "STRING", [1]), ("probabilities", "FP64", [2])]]
    columns = {
        "note": strings(estimators.table_asked["note"]),
        "age": estimators.table_asked[["age"]].to_numpy(),
        "color": strings(estimators.table_asked["color"]),
        "rooms": estimators.table_asked[["rooms"]].to_numpy(),
    }
    answer = infer(server, "table", columns)
    assert texts(answer["label"]) == list(estimators.table.predict(estimators.table_asked))
    assert np.array_equal(answer["probabilities"], estimators.table.predict_proba(estimators.table_asked))


def test_columns_of_numbers_are_inputs_if_configured(server, estimators):
    columns = {name: ASKED[:, [place]] for place, name in enumerate("abc")}
    expected = estimators.named.predict(pandas.DataFrame(ASKED, columns=list("abc")))
    assert np.array_equal(infer(server, "named", columns)["prediction"][:, 0], expected)


def test_texts_are_an_input(server, estimators):
    assert signature(server, "text")[0] == [("text", "STRING", [1])]
    answer = infer(server, "text", {"text": strings(TEXTS[:3])})
    assert np.array_equal(answer["probabilities"], estimators.text.predict_proba(TEXTS[:3]))
    assert np.array_equal(answer["label"][:, 0], estimators.text.predict(TEXTS[:3]))


def test_names_types_and_methods_are_the_configurations(server, estimators):
    rows = ASKED.astype(np.float32)
    assert np.array_equal(
        infer(server, "line", {"rows": rows})["guess"][:, 0], estimators.line.predict(rows).astype("f4")
    )
    answer = infer(server, "groups", {"input": ASKED})
    assert np.array_equal(answer["label"][:, 0], estimators.groups.predict(ASKED))
    assert np.array_equal(answer["transformed"], estimators.groups.transform(ASKED))
    assert list(infer(server, "parallel", {"rows": rows}).outputs) == ["probabilities"]


@pytest.mark.parametrize(
    ("model", "method", "output"),
    [
        ("lines", "predict", "prediction"),
        ("scaler", "transform", "transformed"),
        ("allowed", "predict", "prediction"),
        ("trusted", "predict", "prediction"),
    ],
)
def test_answers_are_the_librarys(server, estimators, model, method, output):
    estimator = {"allowed": estimators.function, "trusted": estimators.line}.get(model) or getattr(estimators, model)
    expected = getattr(estimator, method)(ASKED)
    assert np.array_equal(infer(server, model, {"input": ASKED})[output], expected.reshape(len(ASKED), -1))


def test_sparse_results_and_matrices_of_strings(server, estimators):
    colors = np.array([["red"], ["grün"]], object)
    answer = infer(server, "encoder", {"input": strings(colors[:, 0])})
    assert np.array_equal(answer["transformed"], estimators.encoder.transform(colors).toarray())


def test_an_error_concerns_one_request(server):
    assert "unknown categories ['blue']" in infer(server, "encoder", {"input": strings(["blue"])}).error
    assert infer(server, "encoder", {"input": strings(["red"])}).status == 200


@pytest.fixture(scope="module")
def reasons(server):
    index = server.request("POST", "/v2/repository/index", {}).json
    return {entry["name"]: entry["reason"] for entry in index if entry.get("state") != "READY"}


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (
            "not_allowed",
            ["holds types that skops does not know to be harmless: numpy.nan_to_num", 'key: "TRUSTED_TYPES"'],
        ),
        ("joblib", ["model.joblib is a pickle", 'key: "PICKLE" value { string_value: "trusted" }']),
        ("pickled", ["parameters PICKLE must be one of trusted, it is 'yes'"]),
        ("other_pickle", ["model.pkl cannot be loaded: UnpicklingError", ". The file is truncated, or no pickle"]),
        (
            "no_pickle",
            ["model.joblib cannot be loaded: KeyError: 60. The file is truncated, or no pickle: joblib.dump("],
        ),
        ("truncated", ["model.skops is not a whole file of skops (BadZipFile: File is not a zip file)"]),
        ("no_method", ["METHODS names predict_proba", "a Ridge, which has predict"]),
        ("other_output", ["the output 'answer'", "LogisticRegression in the file gives label, probabilities"]),
        ("other_type", ["expects datatype TYPE_INT64 for output 'label', model provides TYPE_STRING (model.skops)"]),
        ("other_width", ["tensor 'probabilities'", "[-1, 3], in model.skops", "[-1, 2]"]),
        ("several_inputs", ["the inputs x, y", "fitted on an array without names of columns"]),
        ("no_estimator", ["the file holds a list, which has none of the methods predict, "]),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(reasons, model, parts):
    for part in parts:
        assert part in reasons[model]
    assert "Traceback" not in reasons[model]
    assert "\n" not in reasons[model]
