"""Post-training: its stages, a folder each, the methods and rewards, and what several of them share."""
