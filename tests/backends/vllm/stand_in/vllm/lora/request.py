"""The adapter that a request uses."""

import msgspec


class LoRARequest(msgspec.Struct):
    """An adapter."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
