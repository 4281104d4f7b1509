"""Native CPU kernels: one shared library in C, called through ctypes."""
