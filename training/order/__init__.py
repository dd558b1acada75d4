"""The order of the data: which tokens each training step sees. numpy, pyarrow and the standard library."""
