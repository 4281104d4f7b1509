"""What ``wmrt replay`` does: build the models that drove, and tell how it went."""
