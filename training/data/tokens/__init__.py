"""The vocabulary of a recipe, trained or adopted, and the shards of token ids."""
