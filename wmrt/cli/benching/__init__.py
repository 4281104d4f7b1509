"""The parts of ``wmrt bench``: what is asked for, its arms, its tables and its report."""
