"""Decision: how certain a score or a difference is, and whether a model may be promoted.

Stage: `gate` (`promote`). `answers` names the models and files of answers, `intervals` and `paired` have the
statistics, `compare` compares several models; all may be imported from outside. Nothing here runs a model.
"""
