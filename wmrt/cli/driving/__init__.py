"""What ``wmrt drive`` does: open an environment, drive episodes in it, count what happened."""
