"""The ``wmrt`` command: one verb per module, imported only when it runs."""
