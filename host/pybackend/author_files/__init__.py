"""Files that the authors of models have written, read with the server's rights: only what is the model's, and never blocking."""
