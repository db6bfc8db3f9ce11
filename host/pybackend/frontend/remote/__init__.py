"""Front ends in separate processes: how they and the engine's process speak with each other."""
