"""The commands of `pedigree`, a module for each kind; `assets/cli.py` says their order."""
