"""`pedigree status`, `why`, `verify` and `list`: what is there, and whether it is whole."""
