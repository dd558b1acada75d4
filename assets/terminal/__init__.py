"""What commands print while they work and when they end.

`display` shows a run's progress, `time_left` and `first_run` how long it will take, `refusal` the evidence of a gate,
`errors` a sentence in place of a traceback, and `standard_error` prints it. Answers are printed by their own folders.
"""
