"""From a directory on disk to the effective configuration, as the repository does it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybackend.errors import ErrorCode, ModelConfigError, ModelLoadError
from pybackend.modelconfig.backends import BackendPlaces
from pybackend.modelconfig.loader import finish_config, load_config, planned_instances
from pybackend.modelconfig.schema import Scheduling, VersionChoice, instances

MakeModel = Callable[..., Path]

PYTHON = 'backend: "python"\n'
TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 }\noutput { name: "OUT" data_type: TYPE_FP32 dims: 4 }\n'
COMPLETED = {
    "max_batch_size": 4,
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [-1]}],
}


def refusal(directory: Path, *, auto_complete: bool = True) -> ModelConfigError:
    with pytest.raises(ModelConfigError) as caught:
        load_config(directory, auto_complete=auto_complete)
    return caught.value


def test_the_effective_document_of_a_minimal_model(make_model: MakeModel) -> None:
    config = finish_config(load_config(make_model(PYTHON + TENSORS), auto_complete=False), None, 0)
    expected = (
        '{"name":"m","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},'
        '"max_batch_size":0,"input":[{"name":"IN","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],'
        '"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],'
        '"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[4],"label_filename":"","is_shape_tensor":false,'
        '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{"priority":'
        '"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},'
        '"gather_kernel_buffer_threshold":0,"eager_batching":false},"instance_group":[{"name":"m","kind":"KIND_CPU",'
        '"count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],'
        '"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"parameters":{},'
        '"model_warmup":[],"model_transaction_policy":{"decoupled":false}}'
    )
    assert config.to_json() == expected
    assert json.loads(expected) == config.document
    assert config.warnings == ()


def test_typed_fields_follow_the_document(make_model: MakeModel) -> None:
    text = PYTHON + (
        'platform: "anything" runtime: "r" max_batch_size: 8 version_policy { specific { versions: [ 2, 3 ] } }'
        'input { name: "A" data_type: TYPE_STRING dims: [ -1 ] reshape { shape: [ -1, 1 ] } optional: true '
        'allow_ragged_batch: true } output { name: "B" data_type: TYPE_BF16 dims: 1 label_filename: "l" } '
        'parameters { key: "k" value { string_value: "v" } } metric_tags { key: "t" value: "u" } '
        'default_model_filename: "src/other.py" response_cache { enable: true } dynamic_batching { }'
    )
    config = finish_config(load_config(make_model(text), auto_complete=True), None, 0)
    assert (config.name, config.platform, config.backend, config.runtime) == ("m", "anything", "python", "r")
    assert (config.version_policy.choice, config.version_policy.versions) == (VersionChoice.SPECIFIC, (2, 3))
    (tensor,) = config.inputs
    assert (tensor.datatype, tensor.dims, tensor.reshape) == ("BYTES", (-1,), (-1, 1))
    assert tensor.optional
    assert tensor.allow_ragged_batch
    assert (config.outputs[0].datatype, config.outputs[0].reshape, config.outputs[0].label_filename) == (
        "BF16",
        None,
        "l",
    )
    assert (config.parameters, config.metric_tags) == ({"k": "v"}, {"t": "u"})
    assert config.default_model_filename == "src/other.py"
    assert config.response_cache_enabled
    assert config.scheduling is Scheduling.DYNAMIC_BATCHING
    assert not config.decoupled


@pytest.mark.spec("srv-R13")
def test_the_directory_names_the_model(make_model: MakeModel) -> None:
    assert load_config(make_model(PYTHON, name="given"), auto_complete=True).name == "given"
    assert load_config(make_model(f'{PYTHON} name: "same"', name="same"), auto_complete=True).name == "same"
    error = refusal(make_model(f'{PYTHON} name: "n"', name="d"))
    assert error.message.startswith("unexpected directory name 'd' for model 'n', directory name must equal model name")
    assert error.message.endswith("d/config.pbtxt)")
    assert error.code is ErrorCode.INVALID_ARG


def test_a_model_file_alone_is_a_model(make_model: MakeModel, snapshot) -> None:
    directory = make_model()
    config = load_config(directory, auto_complete=True)
    assert (config.name, config.backend, config.default_model_filename) == ("m", "python", "model.py")
    assert (config.inputs, config.outputs) == ((), ())
    finished = finish_config(config, COMPLETED, 0)
    assert finished.max_batch_size == 4
    assert (finished.inputs[0].name, finished.inputs[0].datatype, finished.inputs[0].dims) == ("IN", "INT32", (2,))
    inputs, outputs = finish_config(config, {}, 0).warnings
    assert inputs == snapshot
    assert inputs.endswith(f"(no config.pbtxt in {directory})")
    assert outputs.startswith("model 'm': it has no outputs. ")


def test_without_auto_complete_the_file_is_needed(make_model: MakeModel) -> None:
    directory = make_model()
    assert refusal(directory, auto_complete=False).message == (
        f"failed to read text proto from {directory}/config.pbtxt: there is no such file, and auto-complete, which "
        "could do without it, is disabled"
    )
    (directory / "config.pbtxt").write_text("")
    assert load_config(directory, auto_complete=False).backend == "python"
    (directory / "1" / "model.py").unlink()
    error = refusal(directory, auto_complete=False)
    assert error.message.startswith("must specify 'platform' or 'backend' for 'm': set backend: \"python\" (")


def test_a_dangling_link_is_no_missing_file(make_model: MakeModel) -> None:
    directory = make_model()
    (directory / "config.pbtxt").symlink_to("nowhere")
    message = refusal(directory).message
    assert message == f"failed to read text proto from {directory}/config.pbtxt: No such file or directory"


def test_a_linked_directory_is_named_by_its_link(make_model: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(make_model(PYTHON))
    assert load_config(tmp_path / "link", auto_complete=True).name == "link"


def test_a_missing_directory_cannot_be_read(tmp_path: Path, snapshot) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load_config(tmp_path / "missing", auto_complete=True)
    assert caught.value.message == snapshot


def test_a_file_in_place_of_a_directory_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refusal(tmp_path / "file")
    assert error.message == f"failed to read text proto from {tmp_path}/file/config.pbtxt: Not a directory"


# --- backend --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("", ("1/model.py",)),
        (None, ("3/model.py", "5/readme")),
        ('default_model_filename: "model.py"', ()),
        ('backend: "python"', ()),
    ],
)
def test_python_is_inferred(make_model: MakeModel, text: str | None, files: tuple[str, ...]) -> None:
    config = load_config(make_model(text, files=files), auto_complete=True)
    assert (config.backend, config.default_model_filename) == ("python", "model.py")


def test_python_is_inferred_from_the_name(make_model: MakeModel) -> None:
    config = load_config(make_model("", name="m.python", files=()), auto_complete=True)
    assert (config.backend, config.default_model_filename) == ("python", "model.py")


def test_the_lowest_version_with_a_known_file_counts(make_model: MakeModel) -> None:
    config = load_config(make_model(None, files=("2/readme", "10/model.py", "11/model.onnx")), auto_complete=True)
    assert config.backend == "python"


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("", ()),
        (None, ()),
        ('default_model_filename: "other.bin"', ("1/model.py",)),
    ],
)
def test_nothing_tells_the_backend(make_model: MakeModel, text: str | None, files: tuple[str, ...]) -> None:
    directory = make_model(text, files=files)
    assert refusal(directory).message.startswith(
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        f"Expected model name of the form 'model.<backend_name>'. For a Python model, put its code into "
        f"{directory}/1/model.py"
    )


@pytest.mark.parametrize(
    ("text", "files", "backend"),
    [
        ('backend: "onnxruntime"', (), "onnxruntime"),
        ('platform: "onnxruntime_onnx"', (), "onnxruntime"),
        ('platform: "tensorrt_plan"', (), "tensorrt"),
        ('platform: "torch_aoti" backend: "pytorch"', (), "pytorch"),
        (None, ("1/model.savedmodel/saved_model.pb",), "tensorflow"),
        (None, ("1/model.graphdef",), "tensorflow"),
        (None, ("1/model.plan",), "tensorrt"),
        (None, ("1/model.onnx", "1/model.py"), "onnxruntime"),
        (None, ("1/model.xml",), "openvino"),
        (None, ("1/model.pt",), "pytorch"),
        (None, ("1/model.pt2",), "pytorch"),
    ],
)
def test_backends_that_are_nowhere_are_refused(
    make_model: MakeModel, text: str | None, files: tuple[str, ...], backend: str
) -> None:
    directory = make_model(text, files=files)
    nowhere = BackendPlaces(directory / "own", directory / "shipped")
    with pytest.raises(ModelConfigError) as caught:
        load_config(directory, auto_complete=True, backends=nowhere)
    error = caught.value
    assert error.message.startswith(
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration. "
    )
    assert error.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("auto_complete", [True, False])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform: "p"', "unexpected platform type 'p' for m: leave 'platform' out and set backend: \"python\" ("),
        (
            'platform: "onnxruntime_onnx" backend: "python"',
            "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python",
        ),
    ],
)
def test_platform_and_backend_contradict(
    make_model: MakeModel, text: str, expected: str, auto_complete: bool, snapshot
) -> None:
    refused = refusal(make_model(text), auto_complete=auto_complete)
    assert refused.message.startswith(expected)
    assert refused.message == snapshot


# --- what is refused before the model's code runs -------------------------------------------------------------------


def parameter(key: str, value: str) -> str:
    return f'{PYTHON} parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    ("text", "expected", "code"),
    [
        (
            PYTHON + 'default_model_filename: "model.txt"',
            "Model name must end with '.py'. Model name is \"model.txt\"",
            ErrorCode.INVALID_ARG,
        ),
        (
            PYTHON + 'default_model_filename: "happy"',
            "Model name must end with '.py'. Model name is \"happy\".",
            ErrorCode.INVALID_ARG,
        ),
        (
            PYTHON + 'default_model_filename: "../../other/1/model.py"',
            "'default_model_filename' \"../../other/1/model.py\" of m leaves the model's directory",
            ErrorCode.INVALID_ARG,
        ),
        (
            PYTHON + 'default_model_filename: "/model.py"',
            "'default_model_filename' \"/model.py\" of m leaves the model's directory",
            ErrorCode.INVALID_ARG,
        ),
        (
            parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"),
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'",
            ErrorCode.UNSUPPORTED,
        ),
        (
            parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "Yes"),
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: Yes'",
            ErrorCode.UNSUPPORTED,
        ),
        (parameter("INPUT_COPY", "1"), "Incorrect value for INPUT_COPY", ErrorCode.UNSUPPORTED),
        (
            PYTHON + 'model_repository_agents { agents { name: "decrypt" } }',
            "model 'm' asks for the repository agent 'decrypt'",
            ErrorCode.UNSUPPORTED,
        ),
    ],
)
def test_refused_before_the_model_runs(
    make_model: MakeModel, text: str, expected: str, code: ErrorCode, snapshot
) -> None:
    directory = make_model(text)
    error = refusal(directory)
    assert error.message.startswith(expected)
    assert error.message == snapshot
    assert error.code is code


@pytest.mark.parametrize(
    "text",
    [
        parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes"),
        parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no"),
        parameter("INPUT_COPY", "yes"),
        parameter("INPUT_COPY", "no"),
        PYTHON + "model_transaction_policy { decoupled: false }",
        PYTHON + 'default_model_filename: "src/model.py"',
        PYTHON + 'default_model_filename: "../shared.py"',
    ],
)
def test_accepted(make_model: MakeModel, text: str) -> None:
    load_config(make_model(text), auto_complete=True)


# --- what is served with a warning ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x.so" } }',
            "parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded",
        ),
    ],
)
def test_served_with_a_warning(make_model: MakeModel, text: str, expected: str) -> None:
    directory = make_model(PYTHON + TENSORS + text)
    config = finish_config(load_config(directory, auto_complete=True), None, 0)
    assert config.warnings == (f"model 'm': {expected} ({directory}/config.pbtxt)",)


def test_blocks_for_other_backends_are_echoed_without_a_word(make_model: MakeModel) -> None:
    text = """
        optimization { cuda { graphs: true } input_pinned_memory { enable: false } }
        cc_model_filenames { key: "7.5" value: "f" }
        batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "IN" }
        instance_group {
          profile: "p" host_policy: "h" rate_limiter { resources { name: "R" count: 1 } priority: 2 }
        }
        model_operations { op_library_filename: "x.so" }
        model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: 1 } } }
    """
    config = finish_config(load_config(make_model(PYTHON + TENSORS + text), auto_complete=True), None, 0)
    document: Any = config.document
    assert config.warnings == ()
    assert document["optimization"]["cuda"]["graphs"] is True
    assert document["optimization"]["input_pinned_memory"] == {"enable": False}
    assert document["optimization"]["output_pinned_memory"] == {"enable": True}
    assert document["cc_model_filenames"] == {"7.5": "f"}
    assert document["instance_group"][0]["rate_limiter"] == {
        "resources": [{"name": "R", "global": False, "count": 1}],
        "priority": 2,
    }
    assert document["instance_group"][0]["profile"] == ["p"]
    assert config.instance_groups[0].host_policy == "h"
    assert document["model_operations"] == {"op_library_filename": ["x.so"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic_batching { }", "model 'm': dynamic_batching has no effect"),
        ("dynamic_batching { max_queue_delay_microseconds: 5 }", "dynamic_batching has no effect"),
        (
            'parameters { key: "EXECUTION_TIME_LIMIT" value { string_value: "3" } }',
            "model 'm': parameters EXECUTION_TIME_LIMIT is no option of this server and reaches the model only",
        ),
        ('parameters { key: "restart_limit" value { string_value: "3" } }', "did you mean RESTART_LIMIT?"),
    ],
)
def test_what_has_no_effect_is_warned_of(make_model: MakeModel, text: str, expected: str, snapshot) -> None:
    config = load_config(make_model(PYTHON + TENSORS + text), auto_complete=True)
    (warning,) = finish_config(config, None, 0).warnings
    assert expected in warning
    assert warning == snapshot


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_batching { } max_batch_size: 1",
        "dynamic_batching { default_queue_policy { max_queue_size: 3 } }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
        'parameters { key: "RESTART_LIMIT" value { string_value: "3" } }',
        'parameters { key: "RESTART_AFTER_REQUESTS" value { string_value: "3" } }',
        'parameters { key: "threshold" value { string_value: "3" } }',
    ],
)
def test_what_has_an_effect_is_not_warned_of(make_model: MakeModel, text: str) -> None:
    config = load_config(make_model(PYTHON + TENSORS + text), auto_complete=True)
    assert finish_config(config, None, 0).warnings == ()


def test_a_configuration_of_another_name_is_noticed(make_model: MakeModel) -> None:
    directory = make_model(None, files=("1/model.py", "config.pbtxt.txt"))
    config = load_config(directory, auto_complete=True)
    assert config.source == f"no config.pbtxt in {directory}: rename config.pbtxt.txt"


def test_finishing_leaves_the_loaded_configuration_alone(make_model: MakeModel) -> None:
    config = load_config(make_model(PYTHON + TENSORS), auto_complete=True)
    before = config.to_json()
    first = finish_config(config, COMPLETED | {"dynamic_batching": {}}, 0)
    assert config.to_json() == before
    assert finish_config(config, COMPLETED | {"dynamic_batching": {}}, 0) == first


def test_auto_complete_sees_policies_but_no_instance_groups(make_model: MakeModel) -> None:
    document = load_config(make_model(PYTHON), auto_complete=True).document
    assert document["version_policy"] == {"latest": {"num_versions": 1}}
    assert document["optimization"]["input_pinned_memory"] == {"enable": True}
    assert document["instance_group"] == []


@pytest.mark.parametrize("text", ["", "instance_group [ { count: 2 }, { kind: KIND_MODEL passive: true } ]"])
@pytest.mark.parametrize("gpu_count", [0, 2])
def test_instances_are_known_before_completion(make_model: MakeModel, text: str, gpu_count: int) -> None:
    config = load_config(make_model(PYTHON + text), auto_complete=True)
    assert planned_instances(config, gpu_count) == instances(finish_config(config, COMPLETED, gpu_count))
