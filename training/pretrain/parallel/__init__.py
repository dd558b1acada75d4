"""Training in several processes: degrees, the device mesh, the pipeline, sums in a fixed order, and what watches them.

From outside, `degrees` says how a run is divided (no torch), and `world` is the process that a stage runs in.
"""
