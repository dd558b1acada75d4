"""Rows of conversations, preferences and prompts: read from sources in any form, judged, and kept or dropped."""
