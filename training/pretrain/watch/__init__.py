"""What a training measures of itself at some of its steps, which changes nothing of what it makes."""
