"""``python -m wmrt`` is the ``wmrt`` command."""

import sys

from wmrt.cli.main import main

sys.exit(main())
