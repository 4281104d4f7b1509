"""What ``wmrt quantize`` tells: the table of layers, the card, the results."""
