"""What is watched of a training: the settings, the exam items, and what the passes of a step note."""
