"""The answers of the commands that make nothing: as plain data, as text, and as a page.

A folder or module for each, imported by `commands` alone. Of the folders, `models` and `takedown` use what `trace` and
`gc` find.
"""
