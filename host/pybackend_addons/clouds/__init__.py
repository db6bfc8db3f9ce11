"""The ports for SageMaker and Vertex AI."""
