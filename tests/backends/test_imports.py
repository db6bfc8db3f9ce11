"""Files of every kind that `pybackend import` knows: found by their content, served, and compared with their framework.

One server has all of them; a kind whose framework is not installed is skipped. The command itself is tested in
``tests/e2e/cli``.
"""

import importlib.util
import shutil

import numpy as np
import pytest

from pybackend.modelconfig.parser import format_config_text
from pybackend_client.connection import Connection
from pybackend_client.trial import Trial, answers_to
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.run import backed_by, with_parameters
from pybackend_tools.importing.verification import FrameworkModel, compare
from tests.support.server import serving

# TensorFlow and torch take long to start, and warn about themselves.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

DEADLINE_S = 600.0
PRELOAD = "xgboost,lightgbm,treelite.sklearn,skops.io,sklearn.ensemble"
"""One import for the processes of several models."""
RANDOM = np.random.default_rng(5)
ROWS = RANDOM.random((60, 4), np.float32)
CLASSES = (ROWS[:, 0] > 0.5).astype(int)


def xgboost_json(path):
    import xgboost

    matrix = xgboost.DMatrix(ROWS, CLASSES)
    xgboost.train({"objective": "binary:logistic", "max_depth": 2, "nthread": 1}, matrix, 3).save_model(
        path / "forest.json"
    )
    return path / "forest.json"


def lightgbm_text(path):
    import lightgbm

    options = {"objective": "binary", "verbose": -1, "num_leaves": 4, "num_threads": 1}
    lightgbm.train(options, lightgbm.Dataset(ROWS, CLASSES), 3).save_model(path / "forest.dat")
    return path / "forest.dat"


def treelite_checkpoint(path):
    import treelite.sklearn
    from sklearn.ensemble import GradientBoostingClassifier

    trees = GradientBoostingClassifier(n_estimators=3, max_depth=2).fit(ROWS, CLASSES)
    treelite.sklearn.import_model(trees).serialize(path / "forest")
    return path / "forest"


def skops_archive(path):
    import skops.io
    from sklearn.linear_model import LogisticRegression

    skops.io.dump(LogisticRegression().fit(ROWS, CLASSES), path / "estimator.zip")
    return path / "estimator.zip"


def joblib_pickle_of_texts(path):
    import joblib
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = ["good food", "bad food", "good", "bad"], ["yes", "no", "yes", "no"]
    pipeline = make_pipeline(HashingVectorizer(n_features=8), LogisticRegression()).fit(texts, labels)
    joblib.dump(pipeline, path / "mood.bin")
    return path / "mood.bin"


def litert_file(path):
    from tests.backends.litert import files

    return files.dense(path / "network.bin", RANDOM, rows=-1)


def litert_file_without_signature(path):
    from tests.backends.litert import files

    return files.addition(path / "sum.bin")


def openvino_files(path):
    from tests.backends.openvino import networks

    return networks.dense(path / "network.xml", RANDOM)


def torchscript_archive(path):
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    torch.jit.trace(network, torch.zeros(2, 4)).save(path / "traced.zip")
    return path / "traced.zip"


def exported_program(path):
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(network, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path / "exported.zip")
    return path / "exported.zip"


def saved_model(path):
    import tensorflow as tf

    weights = tf.Variable(RANDOM.standard_normal((4, 3)).astype(np.float32))

    class Network(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = weights

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def serve(self, x):
            return {"y": tf.nn.relu(x @ self.weights)}

    network = Network()
    tf.saved_model.save(network, str(path / "network"), signatures=network.serve)
    return path / "network"


def hugging_face_directory(path):
    from tests.backends.transformers.tiny_models import make_bert

    make_bert(path, "BertForSequenceClassification", ("bad", "good"), spread=0.5)
    return path


def mlflow_directory(path):
    import mlflow.sklearn
    from mlflow.models import infer_signature
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression().fit(ROWS, CLASSES)
    mlflow.sklearn.save_model(
        estimator,
        str(path / "saved"),
        signature=infer_signature(ROWS, estimator.predict(ROWS)),
        serialization_format="pickle",
    )
    return path / "saved"


KINDS = {
    xgboost_json: ("an XGBoost model in JSON", "fil", ("xgboost",)),
    lightgbm_text: ("a LightGBM model", "fil", ("lightgbm",)),
    treelite_checkpoint: ("a treelite checkpoint", "fil", ("treelite", "sklearn")),
    skops_archive: ("a skops file", "sklearn", ("skops", "sklearn")),
    joblib_pickle_of_texts: ("a pickle of joblib", "sklearn", ("sklearn",)),
    litert_file: ("a LiteRT model", "litert", ("ai_edge_litert",)),
    litert_file_without_signature: ("a LiteRT model", "litert", ("ai_edge_litert",)),
    openvino_files: ("an OpenVINO model", "openvino", ("openvino",)),
    torchscript_archive: ("a TorchScript archive", "pytorch", ("torch",)),
    exported_program: ("an archive of torch.export", "pytorch", ("torch",)),
    saved_model: ("a TensorFlow SavedModel", "tensorflow", ("tensorflow",)),
    hugging_face_directory: ("a Hugging Face directory", "transformers", ("transformers", "torch")),
    mlflow_directory: ("an MLflow directory", "python", ("mlflow", "sklearn")),
}
"""By the function that writes a model: the kind, the backend, and the packages without which it is skipped."""


def missing(write):
    return [name for name in KINDS[write][2] if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--model-control-mode=explicit",)) as server:
        yield server


def lay_out(model, entry):
    """Make the entry of a model as the command does before it starts a server: the files, and what the kind states."""
    version = entry / "1"
    for file, source in model.files.items():
        (version / file).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, version / file)
    for file, text in model.texts.items():
        (version / file).write_text(text)
    preload = {"PRELOAD": PRELOAD} if model.configurations[0]["backend"] in {"fil", "sklearn"} else {}
    config = with_parameters(model.configurations[0], {**model.trust, **preload})
    (entry / "config.pbtxt").write_text(format_config_text(config))


@pytest.mark.parametrize("write", KINDS)
def test_a_model_is_found_and_answers_as_its_framework(write, repository, server, tmp_path):
    name, (title, backend, _) = write.__name__, KINDS[write]
    if missing(write):
        pytest.skip(f"{', '.join(missing(write))} is not installed")
    model = backed_by(detect(write(tmp_path), flavor="python_function" if write is mlflow_directory else ""), "")
    assert (model.kind.title, model.kind.backend) == (title, backend)
    lay_out(model, repository / name)
    connection = Connection(f"http://{server.url}", DEADLINE_S)
    trial = Trial(connection, name)
    trial.load()
    config = trial.configuration()
    assert config["backend"] == backend
    request, sizes = trial.sample(config, {})
    answered = answers_to(trial, [request, *trial.further(config, sizes)[:2]])
    assert len(answered) == 3
    framework = FrameworkModel(repository / f"framework_of_{name}")
    shutil.copytree(repository / name / "1", framework.files)
    own = framework.answers(connection, model.kind.name, model.main, config, {}, [each for each, _ in answered])
    comparison = compare(answered, own, 1e-4)
    assert comparison.fault == ""
    assert comparison.output
