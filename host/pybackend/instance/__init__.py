"""Model instances: the processes that run models, kept alive."""
