"""The API of MLflow's server on the port for HTTP."""
