"""Triton kernels. Importing this package loads no triton; `library` says whether they can run."""
