"""Forms about a model or a corpus that other people and their tools read, written from artifacts."""
