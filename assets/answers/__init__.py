"""The answers of the other commands, a folder or module for each: the answer as plain data, its text, its page."""
