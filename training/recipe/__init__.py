"""The recipe: its sections as records, its YAML files, and how these are found and merged.

`recipe` has the record of a whole recipe, `recipes` reads and merges files, `values` bounds what fields may hold.
`settings/` has the sections that only other folders read. Stages import their own section and never `recipe`.
"""
