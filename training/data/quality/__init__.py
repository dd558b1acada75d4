"""Models that rate a text: a classifier and a model of n-grams, trained on texts that the recipe names."""
