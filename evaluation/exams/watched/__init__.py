"""What is asked of a model in training: which choices of an item are right, and the languages of held-out text."""
