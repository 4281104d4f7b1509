"""Worker processes that end when the process that started them is gone."""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks. A killed parent cannot tell its workers, and a worker whose queue is
#: full would drive on for minutes.
INTERVAL = 1.0


def exit_with_parent() -> None:
    """End this process within about `INTERVAL` seconds of its parent's death, whatever it does.

    Call it first thing in a worker, while the parent is known to live.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
