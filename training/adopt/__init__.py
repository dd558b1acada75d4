"""A model or tokenizer of somebody else, with which a recipe begins; its folder is tried in a process of its own."""
