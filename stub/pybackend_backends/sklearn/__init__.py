"""Serves estimators and pipelines of scikit-learn."""
