"""The columns of a model's only input."""

import pytest

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.normalisation import with_scheduling
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import from_document
from pybackend_addons.mlflow.columns import columns_of


def columns(text: str) -> tuple[str, ...]:
    return columns_of(from_document(with_scheduling(parse_config_text(f'name: "m" {text}', "x"), 0), "x"))


def test_columns_of_the_only_input() -> None:
    text = 'input { name: "I" data_type: TYPE_FP32 dims: 2 } parameters { key: "MLFLOW_COLUMNS" value { string_value: \'%s\' } }'
    assert columns(text % '["b", "a"]') == ("b", "a")
    assert columns(text % "[1]" + 'input { name: "J" data_type: TYPE_FP32 dims: 2 }') == ()
    for wrong in ("a,b", "[1]", "[]", '["a", "a"]'):
        with pytest.raises(ModelConfigError, match="MLFLOW_COLUMNS must be a JSON list of different names of columns"):
            columns(text % wrong)
