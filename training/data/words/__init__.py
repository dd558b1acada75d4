"""Words, languages, n-grams and their hashes, in compiled loops that all stages of the data share."""
