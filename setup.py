"""Builds the native kernels; everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        # A plain shared library that ctypes loads: it exports wmrt.h, not a Python module.
        Extension(
            "wmrt.kernels.native._native",
            sources=sorted(glob("kernels/native/*.c")),
            depends=sorted(glob("kernels/native/*.h")),
            extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off"],
            extra_link_args=["-pthread", "-lm"],
        )
    ]
)
