"""The index of rows of post-training and synthetic text, and the erasure of rows."""
