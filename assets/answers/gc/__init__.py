"""`pedigree gc`: what nothing needs, and its removal."""
