"""The archives, files and collections of a snapshot: found, downloaded, selected, and read record by record."""
