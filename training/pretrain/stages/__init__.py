"""The stages `pretrain`, `doremi` and `extend`: their declaration, their settings, and the modules that run them.

From outside, `stage` is collected by `training.stages`, and the settings by the recipe; nothing else is imported.
"""
