"""The report of ``wmrt drive``: one HTML page that needs nothing else, and a film."""
