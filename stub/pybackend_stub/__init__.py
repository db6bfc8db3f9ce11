"""The stub: runs one instance of one model inside the model's own Python and answers the host."""
