"""Serves language models with vLLM: the inputs, outputs and files of Triton's vLLM backend."""
