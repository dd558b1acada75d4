"""Groups of lm-eval's tasks: one suite whose items are those of several tasks."""
