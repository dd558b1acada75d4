"""Stands in the sandbox for a module whose names are asked for in annotations alone."""


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return object
