"""gRPC: requests and responses of infer as protobuf messages."""
