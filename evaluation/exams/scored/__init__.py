"""What is said of answers that were scored."""
