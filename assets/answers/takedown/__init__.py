"""`pedigree takedown`: withdraw pages, rows and texts, erase them, and prove it."""
