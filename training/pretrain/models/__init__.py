"""The decoder: its shape, its layers, its costs, and its export to transformers."""
