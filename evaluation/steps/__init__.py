"""What the steps that a training keeps are worth: their scores, and what a page did to them."""
