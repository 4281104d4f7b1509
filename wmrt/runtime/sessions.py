"""The session that goes with what steps a model."""

from __future__ import annotations

from typing import Any

from wmrt.model.network import Network
from wmrt.runtime.executor import ResolvedExecutor
from wmrt.runtime.native_session import NativeSession
from wmrt.runtime.session import Session
from wmrt.runtime.triton_session import TritonSession


def session_of(network: Network, used: ResolvedExecutor, **options: Any) -> Session:
    """A session on what was resolved."""
    if used.native is not None:
        return NativeSession(network, used.native, **options)
    if used.triton is not None:
        return TritonSession(network, used.triton, **options)
    return Session(network, **options)
