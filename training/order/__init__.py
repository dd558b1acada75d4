"""The order of the data: which tokens each training step sees. Needs only numpy, pyarrow and the standard library."""
