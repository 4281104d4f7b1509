"""Safety breakers: pure Python over `wmrt.core`. No torch, no numpy, no I/O, an injected clock."""

from wmrt.safety.breakers import Breakers
from wmrt.safety.decision import Decision, Proposal
from wmrt.safety.events import Event, EventRing, Finding, describe
from wmrt.safety.limits import DimLimit, Limits, StateLimit
from wmrt.safety.limits_form import tighten, to_document
from wmrt.safety.table import RULES, Cause, Level, State

__all__ = [
    "RULES",
    "Breakers",
    "Cause",
    "Decision",
    "DimLimit",
    "Event",
    "EventRing",
    "Finding",
    "Level",
    "Limits",
    "Proposal",
    "State",
    "StateLimit",
    "describe",
    "tighten",
    "to_document",
]
