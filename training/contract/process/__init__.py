"""Processes: how they begin and end, their exit codes, cores, precision and imports. Knows no job."""
