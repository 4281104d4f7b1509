"""Tables of kernels: JSON files that `wmrt.kernels` reads."""
