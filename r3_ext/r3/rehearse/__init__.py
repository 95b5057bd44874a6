"""What is rehearsed of R^3."""
