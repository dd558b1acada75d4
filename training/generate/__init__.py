"""Models that write: opened from a folder, asked one prompt or many, served, and the stage `synthesize`."""
