"""Ensembles: models that consist of steps, each of which runs another model."""
