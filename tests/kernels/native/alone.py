"""Source that imports library.py without its package, and so without torch: 2 s less a process."""

ALONE = """
from importlib import util
spec = util.spec_from_file_location("library", "kernels/native/library.py")
library = util.module_from_spec(spec)
spec.loader.exec_module(library)
"""
