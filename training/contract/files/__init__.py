"""Files of artifacts: written whole, named by checksums, checked when they are opened, and erased by takedowns."""
