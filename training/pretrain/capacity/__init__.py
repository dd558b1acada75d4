"""Whether a run fits its machines, in bytes and in degrees, and how long it takes there; what a run used.

From outside, plans and refusals read every module. None decides what a run computes.
"""
