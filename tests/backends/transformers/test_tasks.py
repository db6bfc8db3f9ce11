"""Each task beside the library's own pipeline, without a server."""

import io
import json

import numpy as np
import pytest

from pybackend_sdk.error import TritonModelException

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from pybackend_backends.transformers.checkpoints import Checkpoint, TaskSettings, find_directory, read_settings  # noqa: E402
from pybackend_backends.transformers.tasks import WORKERS, pool  # noqa: E402
from tests.backends.pytorch.networks import Attack  # noqa: E402
from tests.backends.transformers import tiny_models  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.torch, pytest.mark.timeout(300)]

TEXTS = ["hello world", "this food is not bad ."]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    tiny_models.make_bert(
        made / "classes", "BertForSequenceClassification", ("contradiction", "neutral", "entailment"), spread=0.5
    )
    tiny_models.make_bert(made / "entities", "BertForTokenClassification", ("O", "B-FOOD", "I-FOOD"), spread=0.5)
    tiny_models.make_bert(made / "embedding", "BertModel")
    return made


def worker(directory, task="", **settings):
    checkpoint = Checkpoint(str(directory), task)
    return WORKERS[checkpoint.task](checkpoint, TaskSettings(**settings), "cpu")


def run(work, **inputs):
    with torch.inference_mode():
        return work.run(inputs)


def test_texts_are_classified_as_by_the_library(directories):
    answer = run(worker(directories / "classes"), text=TEXTS)
    expected = transformers.pipeline("text-classification", str(directories / "classes"))(TEXTS, top_k=1)
    assert [label for (label,) in answer["label"].tolist()] == [each[0]["label"].encode() for each in expected]
    assert np.allclose(answer["score"][:, 0], [each[0]["score"] for each in expected], atol=1e-6)
    assert np.allclose(answer["scores"].sum(axis=1), 1)


def test_a_single_text_is_computed_bit_for_bit(directories):
    answer = run(worker(directories / "classes"), text=TEXTS[:1])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directories / "classes").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(directories / "classes")(TEXTS[0], return_tensors="pt")
    with torch.inference_mode():
        expected = model(**tokens).logits.softmax(-1).numpy()
    assert np.array_equal(answer["scores"], expected)


def test_entities_are_found_as_by_the_library(directories):
    answer = run(worker(directories / "entities"), text=TEXTS)
    find = transformers.pipeline("token-classification", str(directories / "entities"), aggregation_strategy="simple")
    for (found,), text in zip(answer["entities"].tolist(), TEXTS, strict=True):
        listed = json.loads(found)
        expected = find(text)
        assert [(each["word"], each["entity_group"]) for each in listed] == [
            (each["word"], each["entity_group"]) for each in expected
        ]
        assert np.allclose([each["score"] for each in listed], [float(each["score"]) for each in expected], atol=1e-5)


def test_labels_of_the_request_are_ranked_as_by_the_library(directories):
    labels = ["food", "good", "hello"]
    for multi in (False, True):
        answer = run(
            worker(directories / "classes", "zero-shot-classification"),
            text=TEXTS[:1],
            candidate_labels=labels,
            multi_label=[multi],
        )
        rank = transformers.pipeline("zero-shot-classification", str(directories / "classes"))
        expected = rank(TEXTS[0], labels, multi_label=multi)
        assert [label.decode() for label in answer["labels"]] == expected["labels"]
        assert np.allclose(answer["scores"], expected["scores"], atol=1e-6)


def test_embeddings_ignore_padding(directories):
    work = worker(directories / "embedding", normalize=True)
    together, alone = run(work, text=TEXTS), [run(work, text=[text]) for text in TEXTS]
    assert np.allclose(together["embedding"], np.concatenate([each["embedding"] for each in alone]), atol=1e-5)
    assert np.allclose(np.linalg.norm(together["embedding"], axis=1), 1, atol=1e-5)


def test_tokens_are_pooled():
    states = torch.tensor([[[1.0], [2.0], [9.0]], [[3.0], [4.0], [5.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    pooled = {name: pool(states, mask, name).ravel().tolist() for name in ("mean", "cls", "last", "max")}
    assert pooled == {"mean": [1.5, 4.0], "cls": [1.0, 3.0], "last": [2.0, 5.0], "max": [2.0, 5.0]}


def test_images_are_classified_as_by_the_library(tmp_path):
    image_of = pytest.importorskip("PIL.Image").effect_noise
    if not hasattr(transformers, "ViTImageProcessorPil"):
        pytest.skip("this version of transformers has no image processor without torchvision")
    tiny_models.make_vit(tmp_path, ("cat", "dog"))
    encoded = []
    for size in ((40, 50), (20, 30)):
        file = io.BytesIO()
        image_of(size, 50).convert("RGB").save(file, "PNG")
        encoded.append(file.getvalue())
    work = worker(tmp_path)
    together = run(work, image=encoded)["scores"]
    assert np.allclose(together, np.concatenate([run(work, image=[each])["scores"] for each in encoded]), atol=1e-6)
    assert not np.allclose(together[0], together[1])
    with pytest.raises(TritonModelException, match="'image' must be an encoded image such as JPEG or PNG"):
        run(work, image=[b"no image"])


def test_directories_that_cannot_be_served_are_refused(directories, tmp_path):
    with pytest.raises(TritonModelException, match=r"has no config.json: put there what save_pretrained\(\) writes"):
        find_directory(str(tmp_path))
    with pytest.raises(TritonModelException, match=r"nor in the local cache .* Models are never downloaded"):
        find_directory(str(tmp_path), "someone/something", str(tmp_path))
    with pytest.raises(TritonModelException, match="cannot be loaded as an image processor"):
        Checkpoint(str(directories / "classes"), "image-classification").image_processor()
    weights = tmp_path / "model.safetensors"
    (tmp_path / "config.json").write_bytes((directories / "classes" / "config.json").read_bytes())
    weights.write_bytes((directories / "classes" / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(TritonModelException, match="cannot be loaded as a model for text-classification"):
        Checkpoint(str(tmp_path)).model("auto", "cpu")
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertForPreTraining"]}')
    with pytest.raises(TritonModelException, match=r"BertForPreTraining, which tells no task\. Say it with .* TASK"):
        Checkpoint(str(tmp_path))


def test_code_of_a_directory_does_not_run(tmp_path):
    evidence = tmp_path / "evidence"
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}, "architectures": ["MineModel"]}'
    )
    (tmp_path / "code.py").write_text(f"open({str(evidence)!r}, 'w').close()")
    with pytest.raises(TritonModelException, match="cannot be loaded as a description of a model"):
        Checkpoint(str(tmp_path))
    assert not evidence.exists()


def test_code_in_a_pickle_of_weights_does_not_run(directories, tmp_path):
    evidence = tmp_path / "evidence"
    (tmp_path / "config.json").write_bytes((directories / "classes" / "config.json").read_bytes())
    torch.save({"classifier.weight": Attack(evidence)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(TritonModelException, match="cannot be loaded as a model for text-classification"):
        Checkpoint(str(tmp_path)).model("auto", "cpu")
    assert not evidence.exists()


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"TASKS": "x"}, "has no parameter 'TASKS': did you mean TASK?"),
        ({"TASK": "poetry"}, "TASK must be one of text-classification"),
        ({"HYPOTHESIS_TEMPLATE": "It is."}, "HYPOTHESIS_TEMPLATE must have {} where the label goes"),
    ],
)
def test_parameters_are_checked(parameters, text):
    config = {"name": "m", "parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    with pytest.raises(TritonModelException) as refused:
        read_settings(config)
    assert text in str(refused.value)
