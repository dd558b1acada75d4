"""The decoder: its shape, its layers, what it costs, and how transformers has it."""
