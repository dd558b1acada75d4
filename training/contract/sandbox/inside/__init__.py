"""What runs inside the sandbox: the tests on one side, the program on the other. Standard library only."""
