"""Preference methods by name, one file each; other code reads only the `METHOD` that each file declares."""
