"""Imported first by a data stage's fork server, so that the server ends when the stage's own process ends.

The fork server is the process from which Python's multiprocessing starts workers; a program can run code in it only
through the modules that it preloads (`set_forkserver_preload`).
"""

import gc

from training.contract.process.lifetime import die_with_parent

die_with_parent()
gc.disable()  # the server imports modules and forks; each worker (workers.py) switches collections on
