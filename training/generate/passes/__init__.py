"""How one pass over a model is computed: without padding, in fp32 on a CPU, in how many rows, with room in its cache.

Post-training, scoring and sampling use all of these. No module here opens a model.
"""
