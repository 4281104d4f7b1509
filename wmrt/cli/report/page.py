"""The HTML report: one file with its style, its script and its data inside; nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wmrt.core.files import replacing

_HERE = Path(__file__).parent
_SCRIPTS = ("scene.js", "charts.js", "main.js")


def render(document: Mapping[str, Any]) -> str:
    """The page of ``document``, plain JSON data as `wmrt.cli.drive` puts it together.

    Raises ValueError on NaN or infinity: JSON has neither.
    """
    data = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # "</script>" inside a string would end the data element; JSON allows every "<" as an escape.
    data = data.replace("<", "\\u003c")
    parts = {
        "{{style}}": _read("style.css"),
        "{{script}}": "\n".join(_read(name) for name in _SCRIPTS),
        "{{data}}": data,  # last, so that nothing in it is taken for a placeholder
    }
    page = _read("page.html")
    for placeholder, text in parts.items():
        page = page.replace(placeholder, text, 1)
    return page


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write `render` to ``path``; `UsageError` if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_text(render(document), encoding="utf-8")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()
