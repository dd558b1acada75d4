"""What is asked of suites themselves, without a model."""
