"""What ``wmrt gates`` does: set up what is gated, drive it, show the verdicts."""
