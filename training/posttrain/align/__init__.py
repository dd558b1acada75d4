"""The stage `align`, and the trainings from pairs, single answers and samples that methods are made of."""
