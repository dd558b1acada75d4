"""Pretraining: the trainer (`step`, `run`, `state`), what it is made of (folders), and its stages (`stages`).

Imports torch, numpy, safetensors and the standard library only. From outside, `stages.stage`, the settings and
`capacity` are read by the recipe and by plans; `step`, `parallel` and `models` by whoever trains or runs a model.
"""
