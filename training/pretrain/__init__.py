"""Pretraining: models, optimizers, steps and runs. Imports torch, numpy, safetensors and the standard library only."""
