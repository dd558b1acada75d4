"""What is registered and promoted: the champion, versions, and the record digests that were told to others."""
