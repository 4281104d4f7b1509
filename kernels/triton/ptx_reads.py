"""What a kernel reads before it waits for the launch before it, found in its PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMENT = re.compile(r"//[^\n]*")
_REGISTER = re.compile(r"%[a-z]+\d+")
_PARAMETER = re.compile(r"_param_(\d+)\b")
_ADDRESS = re.compile(r"\[([^\]]*)\]")
_WAIT = "griddepcontrol.wait"
_MEMORY = ("ld.global", "st.global", "atom.", "red.")


def reads_before_wait(ptx: str, arguments: Sequence[str]) -> list[str]:
    """Arguments through which memory is read or written above the wait; none without a wait.

    Follows every register back to the parameters it was computed from, in the order of the text.
    Triton's loads stay in that order: they are volatile to the compiler, as the wait is. Prefetches
    do not count, nothing depends on what they bring.

    Args:
        arguments: names of the kernel's parameters, in order, empty for what is no pointer; those
            behind them are the compiler's.
    """
    text = _COMMENT.sub("", ptx)
    if _WAIT not in text:
        return []
    origin: dict[str, frozenset[str]] = {}
    found: set[str] = set()
    for statement in text[: text.index(_WAIT)].split(";"):
        operation, _, operands = statement.strip().partition("\t")
        line = f"{operation} {operands}"
        if any(name in line for name in _MEMORY):
            for address in _ADDRESS.findall(line):
                for register in _REGISTER.findall(address):
                    found |= origin.get(register, frozenset({f"what {register} holds"}))
        targets, sources = _parts(line)
        held = frozenset[str]().union(*(origin.get(s, frozenset()) for s in sources))
        for number in _PARAMETER.findall(line) if "ld.param" in line else ():
            held |= {_name(int(number), arguments)} - {""}
        origin.update(dict.fromkeys(targets, held))
    return sorted(found)


def _parts(line: str) -> tuple[list[str], list[str]]:
    """Registers that a statement writes, those of its first operand, and all others."""
    body = re.sub(r"^\s*@!?%p\d+\s+", "", line)
    first = re.match(r"[^{%]*(\{[^}]*\}|%[a-z]+\d+)", body)
    if first is None:
        return [], _REGISTER.findall(body)
    return _REGISTER.findall(first[1]), _REGISTER.findall(body[first.end() :])


def _name(number: int, arguments: Sequence[str]) -> str:
    return arguments[number] if number < len(arguments) else f"parameter {number}"
