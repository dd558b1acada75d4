"""The exams of the model in small numbers, and what it lost (`scores`)."""
