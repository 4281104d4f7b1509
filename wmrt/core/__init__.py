"""Types, errors, clock and measurement shared by every layer. Standard library only."""
