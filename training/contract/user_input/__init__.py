"""What people hand in: YAML and JSON, names, paths, and the bounds of values."""
