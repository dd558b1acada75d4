"""Pretraining: a decoder, its data order, its loop. Imports torch, numpy, safetensors and the standard library only."""
