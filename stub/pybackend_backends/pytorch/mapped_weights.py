"""Puts the weights of a TorchScript module back onto its file, so that instances share one copy in memory.

``torch.jit.load`` copies all weights into memory of the process. But torch stores each tensor uncompressed in the
archive, so a mapping of the file serves as well. A weight is replaced only by bytes that equal its own.
"""

from typing import Any, Dict, List

import numpy as np
import torch

_LEAST_BYTES = 65536
"""Smaller weights stay in memory: a mapping costs whole pages."""


def map_weights(module: Any, path: str) -> int:
    """Replace the memory of large parameters and buffers by private mappings of the file.

    Args:
        module: just loaded from the file, on the CPU. Writing to a mapped weight is possible and stays private.

    Returns:
        How many bytes are mapped now.
    """
    weights: List[Any] = [*module.parameters(), *module.buffers()]
    large = [weight for weight in weights if _size_bytes(weight) >= _LEAST_BYTES and weight.is_contiguous()]
    records = _records_by_size(path) if large else {}
    mapped_bytes = 0
    for weight in large:
        for offset in records.get(_size_bytes(weight), ()):
            view = np.memmap(path, np.uint8, "c", offset, (_size_bytes(weight),))
            candidate = torch.from_numpy(np.asarray(view)).view(weight.dtype).view(weight.shape)
            if torch.equal(weight.detach().view(-1).view(torch.uint8), candidate.view(-1).view(torch.uint8)):
                weight.data = candidate
                mapped_bytes += view.nbytes
                break
    return mapped_bytes


def _size_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size()) if tensor.layout is torch.strided else 0


def _records_by_size(path: str) -> Dict[int, List[int]]:
    """Offsets in the file of the archive's tensors, by their size in bytes."""
    reader = torch._C.PyTorchFileReader(path)
    found: Dict[int, List[int]] = {}
    for name in reader.get_all_records():
        if name.startswith(("data/", "constants/")):
            found.setdefault(reader.get_record_size(name), []).append(reader.get_record_offset(name))
    return found
