"""Serves TorchScript, archives of torch.export and Python classes with weights, by PyTorch."""
