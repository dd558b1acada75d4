"""The commands of `pedigree`, a module for each kind; `assets/commands/cli.py` says their order."""
