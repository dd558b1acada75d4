"""Sections of the recipe that no stage of `training` owns, such as evaluation, promotion and automation."""
