"""What a data stage's fork server imports before anything else: from then on it ends with the stage's own process.

Its imports are the only place where a program has a say in that process (`set_forkserver_preload`).
"""

from training.processes import die_with_parent

die_with_parent()
