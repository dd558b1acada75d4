"""`pedigree run`: what is made next, its runs of Dagster, its result; and the sensor and schedule of automation."""
