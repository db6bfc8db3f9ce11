"""Front ends in processes of their own: how they and the engine's process speak with each other."""
