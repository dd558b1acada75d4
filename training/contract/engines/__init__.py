"""Engines, which run the ranks of a data stage: worker processes on the job's own node (`local`), or Ray (`ray`).

A backend (resources/compute) runs the job; inside the job, an engine runs its ranks. A stage knows of no engine. The
marks that finished ranks write are the only truth about what is made, whatever engine ran them.
"""
