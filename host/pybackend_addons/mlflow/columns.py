"""The columns of a model's only input, as MLflow's routes know them: the parameter ``MLFLOW_COLUMNS``."""

import msgspec

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.schema import ModelConfig
from pybackend.modelconfig.signature import ModelSignature

_COLUMNS = "MLFLOW_COLUMNS"


def columns_in(signature: ModelSignature) -> tuple[str, ...]:
    """The columns of a signature."""
    found = signature.extras.get("mlflow", ())
    return found if isinstance(found, tuple) else ()


def columns_of(config: ModelConfig) -> tuple[str, ...]:
    """Their names; none if the configuration has none, or several inputs. Raises ModelConfigError for wrong ones."""
    text = config.parameters.get(_COLUMNS)
    if text is None or len(config.inputs) != 1:
        return ()
    try:
        columns = msgspec.json.decode(text, type=tuple[str, ...])
    except (msgspec.DecodeError, UnicodeError):
        columns = ()
    if not columns or len(set(columns)) < len(columns):
        raise ModelConfigError(
            f"model '{config.name}': parameters {_COLUMNS} must be a JSON list of different names of columns, it "
            f"is {text[:200]!r} ({config.source})"
        )
    return columns
