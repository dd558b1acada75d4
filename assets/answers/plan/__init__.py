"""`pedigree plan`: what a recipe will take with a profile."""
