"""The protobuf messages that this project speaks: model configurations, and what goes over gRPC."""
