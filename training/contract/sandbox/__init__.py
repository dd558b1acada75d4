"""Run code that a model or a stranger wrote where it can harm nothing, and judge it where it cannot change the verdict.

`confined.py` starts a process that sees an interpreter and nothing else; `seccomp.py` is the filter of its system
calls. `judged.py` examines programs by their tests, of which the two sides in `inside/` run confined. `answers.py`
scores answers that are evaluated.
"""
