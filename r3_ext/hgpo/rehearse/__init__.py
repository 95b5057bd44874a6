"""What is rehearsed of methods on sessions."""
