"""The stage `preferences`: pairs of answers and single answers, written and read as tokens."""
