"""The last model in small numbers, a second result beside it: the stage `quantize`."""
