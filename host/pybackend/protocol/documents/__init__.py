"""The small documents around infer: metadata, the repository, logs, traces, traffic and regions."""
