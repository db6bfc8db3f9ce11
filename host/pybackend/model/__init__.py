"""A model version: its configuration, instances, queue, memory and counters."""
