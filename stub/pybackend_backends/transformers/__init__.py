"""Serves directories of Hugging Face models with transformers and PyTorch."""
