"""What is rehearsed of RRL-style replay."""
