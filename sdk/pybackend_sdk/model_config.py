"""``ModelConfig``, which ``auto_complete_config`` fills in, and look-ups in a parsed configuration."""

import json
from typing import Any, Dict, Optional, Tuple

_INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES = ("name", "data_type", "dims")
_REQUIRED_PROPERTIES = ("name", "data_type", "dims")


class ModelConfig:
    """A model's configuration during auto-completion.

    Completion never overrules the configuration in the repository: a contradiction is a ``ValueError``, and the model
    does not load.

    Args:
        model_config: the configuration as JSON text.
    """

    def __init__(self, model_config: str) -> None:
        self._model_config: Dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> Dict[str, Any]:
        """The configuration itself, not a copy: changes take effect."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch.

        Raises:
            ValueError: the configuration allows larger batches.
        """
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name()}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Turn on dynamic batching.

        Raises:
            ValueError: the configuration names another scheduler.
        """
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name()}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Dict[str, Any]) -> None:  # noqa: A002  the field's own name
        """Add an input, or complete the existing one of that name.

        Args:
            input: ``name``, ``data_type``, ``dims``, and ``optional`` for an optional input.

        Raises:
            ValueError: a property is missing, unknown, or contradicts the configuration.
        """
        self._add("input", input, _INPUT_PROPERTIES, "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output: Dict[str, Any]) -> None:
        """Add an output, or complete the existing one of that name.

        Args:
            output: ``name``, ``data_type`` and ``dims``.

        Raises:
            ValueError: a property is missing, unknown, or contradicts the configuration.
        """
        self._add("output", output, _OUTPUT_PROPERTIES, "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Set whether the model is decoupled.

        Args:
            transaction_policy_dict: ``decoupled``, a bool.

        Raises:
            ValueError: there is another property, or the configuration says the opposite.
        """
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name()}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name()}', which is "
                f"already set to '{policy['decoupled']}'."
            )

    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(self, kind: str, tensor: Dict[str, Any], allowed: Tuple[str, ...], allowed_text: str) -> None:
        self._check_properties(kind, tensor, allowed, allowed_text)
        configured_tensors = self._model_config.setdefault(kind, [])
        configured = _by_name(configured_tensors, tensor["name"])
        if configured is None:
            configured_tensors.append(tensor)
        else:
            self._complete(kind, configured, tensor)

    def _check_properties(self, kind: str, tensor: Dict[str, Any], allowed: Tuple[str, ...], allowed_text: str) -> None:
        where = f"in auto-complete-config function for model '{self._name()}'"
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        name = tensor["name"]
        if any(key not in allowed for key in tensor):
            raise ValueError(f"{kind} '{name}' {where} contains property other than {allowed_text}.")
        for key in _REQUIRED_PROPERTIES:
            if key not in tensor:
                raise ValueError(f"{kind} '{name}' {where} is missing '{key}' property.")

    def _complete(self, kind: str, configured: Dict[str, Any], tensor: Dict[str, Any]) -> None:
        name = tensor["name"]
        datatype = configured.get("data_type", "TYPE_INVALID")
        if datatype == "TYPE_INVALID":
            configured["data_type"] = tensor["data_type"]
        elif datatype != tensor["data_type"]:
            raise ValueError(
                f"unable to load model '{self._name()}', configuration expects datatype {datatype} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        if not configured.get("dims"):
            configured["dims"] = tensor["dims"]
        else:
            self._check_same("dims", configured, tensor)
        if "optional" in tensor:
            configured.setdefault("optional", tensor["optional"])
            self._check_same("optional", configured, tensor)

    def _check_same(self, key: str, configured: Dict[str, Any], tensor: Dict[str, Any]) -> None:
        if configured[key] != tensor[key]:
            raise ValueError(
                f"model '{self._name()}', tensor '{tensor['name']}': the model expects {key} {tensor[key]} but the "
                f"model configuration specifies {key} {configured[key]}"
            )


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return the input of that name in a parsed configuration, None if it has none."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return the output of that name in a parsed configuration, None if it has none."""
    return _by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Whether a parsed configuration says that the model is decoupled."""
    decoupled: bool = model_config.get("model_transaction_policy", {}).get("decoupled", False)
    return decoupled


def _by_name(tensors: Any, name: str) -> Optional[Dict[str, Any]]:
    for tensor in tensors:
        if tensor["name"] == name:
            found: Dict[str, Any] = tensor
            return found
    return None
