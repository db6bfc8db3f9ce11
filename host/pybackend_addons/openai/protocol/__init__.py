"""OpenAI's API: bodies of requests to tensors of a model, and responses of a model to OpenAI's documents."""
