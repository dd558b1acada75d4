"""The stages of the data, a folder each in the order of `stages.FOLDERS`, and what several of them share."""
