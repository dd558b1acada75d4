"""The recipe: its sections as records, its YAML files, and how these are found and merged."""
