"""Opens an environment for driving and asks it what the results and the report need."""

from __future__ import annotations

import logging
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.core.extras import require

#: What an environment has to offer besides the Gymnasium calls.
NEEDED = ("state_schema", "action_spec", "period", "state", "telemetry")
#: And for a film.
FILMED = ("poses", "frame")
#: 900 x 208 pixels, 100 m of road and all lanes from any of them.
FILM = {"screen_width": 900, "screen_height": 208, "scaling": 9.0, "offscreen_rendering": True}


def open_environment(name: str, *, film: bool = False) -> Any:
    """The environment registered under ``name``, unwrapped.

    Args:
        name: a Gymnasium id; ``wmrt/...`` are this package's own.
        film: one that can draw frames (`FILMED`).

    Raises:
        UsageError: no such environment, or one that is not made for driving.
        MissingExtraError: the simulator is not installed.
    """
    # highway-env imports matplotlib, which on its first run says that it builds a font cache.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    gymnasium = require("gymnasium", "drive")
    options: dict[str, Any] = {"render_mode": "rgb_array", "config": FILM} if film else {}
    spec = f"wmrt.envs:{name}" if name.startswith("wmrt/") else name
    try:
        env = gymnasium.make(spec, disable_env_checker=True, **options).unwrapped
    except (gymnasium.error.Error, ImportError) as error:
        raise UsageError(f"--env {name}: {_first_line(error)}; there are {_known()}") from None
    needed = (*NEEDED, *FILMED) if film else NEEDED
    missing = [key for key in needed if not hasattr(env, key)]
    if missing:
        raise UsageError(
            f"--env {name} cannot be driven: it has no {', '.join(missing)}; there are {_known()}"
        )
    return env


def lanes(env: Any) -> dict[str, Any] | None:
    """Centres (y in m) and width of the lanes of a straight road; None for another kind of road."""
    network = getattr(getattr(env, "road", None), "network", None)
    if network is None:
        return None
    found = network.lanes_list()
    centres = [round(float(lane.position(0.0, 0.0)[1]), 3) for lane in found]
    return {"centres": centres, "width": float(found[0].width)} if centres else None


def _known() -> str:
    from wmrt.envs.registration import ENVIRONMENTS

    return ", ".join(ENVIRONMENTS)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
