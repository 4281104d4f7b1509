"""llama.cpp through llama-cpp-python: one decode step of a llama model of the same matrices.

Q4_0 and MXFP4, each packed at load for the processor as llama.cpp does by default. Other than the
peers that run linear layers only, the step includes norms, RoPE, attention over 9 positions and
SwiGLU.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import UnsupportedError
from wmrt.runtime.bench.arms import Arm, Missing
from wmrt.runtime.bench.peers.check import within
from wmrt.runtime.bench.peers.common import (
    Peer,
    Shape,
    attempt,
    check_threads,
    describe,
    require,
)
from wmrt.runtime.bench.peers.llama_reference import logits
from wmrt.runtime.bench.peers.llama_shape import Llama, llama_of, write

KINDS = ("Q4_0", "MXFP4")
#: What a step attends to before its own token: the past slots that a layer of our model reads.
PAST = 8
# Activations in int8 by 32 cost 0.5% of a vector per matrix; 5 follow each other in one layer.
LIMIT = 0.03


def build(shapes: Sequence[Shape], threads: int) -> list[Arm | Missing]:
    """An arm per format; see `wmrt.runtime.bench.peers`."""
    check_threads(threads)
    return [attempt(name_of(kind), partial(_arm, shapes, kind, threads)) for kind in KINDS]


def name_of(kind: str) -> str:
    """Name of the arm of a format."""
    return f"llama.cpp-{kind.lower().replace('_', '')}"


def _arm(shapes: Sequence[Shape], kind: str, threads: int) -> Arm:
    llama, gguf = require("llama_cpp", "llama-cpp-python"), require("gguf", "gguf")
    model = llama_of(shapes)
    error = check(llama, gguf, model.shallow(), kind, threads)
    decoder, read = open_decoder(llama, gguf, model, kind, threads)
    for i in range(PAST):
        decoder.decode(i % model.vocabulary)

    def step() -> None:
        decoder.decode(PAST)
        decoder.forget(PAST)

    settings = {
        "weights": kind,
        "n_threads": threads,
        "mmap": True,
        "mlock": False,
        "past": PAST,
        "vocabulary": model.vocabulary,
        "system": llama.llama_print_system_info().decode().strip(),
        "buffers": decoder.buffers,
    }
    detail = {
        **describe(["llama-cpp-python", "gguf"], settings),
        "covers": "a decode step of a llama model: also norms, RoPE, attention, SwiGLU",
        "error": {"logits of one layer": error},
    }
    recipe = {"Q4_0": "w4a8-g32", "MXFP4": "mxfp4"}[kind]
    return Peer(name_of(kind), recipe, threads, read, detail, step, decoder.close)


def check(llama: Any, gguf: Any, model: Llama, kind: str, threads: int) -> float:
    """Error of the logits after four tokens, decoded one by one, against float64."""
    tokens = [3, 1, 4, 2]
    decoder, _ = open_decoder(llama, gguf, model, kind, threads)
    try:
        for token in tokens:
            decoder.decode(token)
        got = decoder.logits()
    finally:
        decoder.close()
    return within(got, logits(gguf, model, kind, tokens), LIMIT, "one layer's logits")


def open_decoder(
    llama: Any, gguf: Any, model: Llama, kind: str, threads: int
) -> tuple[Decoder, int]:
    """The model written to a file that is gone once it is mapped, and bytes read per step."""
    with tempfile.TemporaryDirectory(prefix="wmrt-peer-") as folder:
        path = Path(folder) / "model.gguf"
        read = write(gguf, model, kind, path)
        return Decoder(llama, path, model.vocabulary, threads), read


_log: deque[str] = deque(maxlen=400)
_callback: Any = None  # the library keeps a bare pointer to it


def listen(llama: Any) -> deque[str]:
    """The lines that llama.cpp logs, kept here from now on; it writes them to stderr otherwise."""
    global _callback
    if _callback is None:

        def keep(level: int, text: bytes, data: object) -> None:
            _log.append(text.decode("utf-8", "replace").strip())

        _callback = llama.llama_log_callback(keep)
    llama.llama_log_set(_callback, None)
    return _log


class Decoder:
    """One model and one context of llama.cpp, decoding a token at a time.

    Raises `UnsupportedError` when the library refuses the file.
    """

    def __init__(self, llama: Any, path: Path, vocabulary: int, threads: int) -> None:
        log = listen(llama)
        log.clear()
        self._llama, self._vocabulary = llama, vocabulary
        self._context: Any = None
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise UnsupportedError(f"llama.cpp does not load this model: {' '.join(log):.300}")
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 64, 32, 32
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama.llama_init_from_model(self._model, settings)
        if not self._context:
            self.close()
            raise UnsupportedError("llama.cpp makes no context for this model")
        #: Where the weights lie: ``CPU_REPACK`` are those packed for the processor.
        self.buffers = [line for line in log if "model buffer size" in line]
        self._memory = llama.llama_get_memory(self._context)
        self._token = (llama.llama_token * 1)()
        self._batch = llama.llama_batch_get_one(self._token, 1)

    def decode(self, token: int) -> None:
        """One token at the next position; returns when its logits are there."""
        self._token[0] = token
        status = self._llama.llama_decode(self._context, self._batch)
        if status:
            raise UnsupportedError(f"llama_decode failed with status {status}")
        self._llama.llama_synchronize(self._context)

    def forget(self, position: int) -> None:
        """Drop this position and all after it."""
        self._llama.llama_memory_seq_rm(self._memory, 0, position, -1)

    def logits(self) -> NDArray[np.float32]:
        """float32[vocabulary] of the last token."""
        pointer = self._llama.llama_get_logits_ith(self._context, -1)
        array = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self._vocabulary))
        return np.array(array.contents, np.float32)

    def close(self) -> None:
        """Free the context, its threads and the model. Does nothing the second time."""
        if self._context:
            self._llama.llama_free(self._context)
        if self._model:
            self._llama.llama_model_free(self._model)
        self._context = self._model = None
