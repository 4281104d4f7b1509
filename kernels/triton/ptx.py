"""PTX in numpy: what a block of inline assembly computes, for testing kernels without a GPU.

Only the instructions of the table below, each by its full name ("PTX ISA", chapter 9); any other
is an error that names it. Another one is a line more in `INSTRUCTIONS`.

Registers are arrays of uint64 that hold the bits, one element per invocation of the block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import bits

Register = NDArray[np.uint64]
Instruction = Callable[..., Register]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|[^,{}]+")
_RANGE = re.compile(r"(\S+)<(\d+)>$")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_WIDTH = re.compile(r"\.(?:b|u|s|f)(8|16|32|64)$")
#: Bits of an operand by its letter in the constraints.
_LETTERS = {"h": 16, "r": 32, "l": 64, "f": 32, "d": 64}


def emulate(asm: str, constraints: str, inputs: Sequence[NDArray[Any]]) -> list[Register]:
    """Run ``asm``; its outputs as bits, in order.

    Args:
        asm: text of `tl.inline_asm_elementwise`, with ``$0`` and so on.
        constraints: its constraints, such as ``=r,r,l``.
        inputs: one array of unsigned integers per input constraint, all of one shape.

    Raises:
        UnsupportedError: an instruction or directive that is not emulated; the message names it.
        UsageError: constraints, names or operands that do not fit together, or a register that is
            read before it is written, which hardware would let pass.
    """
    letters = [part.strip() for part in constraints.split(",")]
    outputs = sum(letter.startswith("=") for letter in letters)
    if len(letters) - outputs != len(inputs):
        raise UsageError(f"{len(inputs)} inputs for the constraints {constraints!r}")
    machine = _Machine()
    for index, letter in enumerate(letters):
        name = letter.lstrip("=&")
        if name not in _LETTERS:
            raise UnsupportedError(f"constraint {letter!r}: emulated are {', '.join(_LETTERS)}")
        machine.widths[f"${index}"] = _LETTERS[name]
        if index >= outputs:
            machine.write(f"${index}", np.asarray(inputs[index - outputs]).astype(np.uint64))
    statements = [each for each in _statements(asm) if each.split()[0] not in NOTHING]
    if not statements:  # outputs that only syntax asks for
        return [np.zeros((), np.uint64)] * outputs
    for statement in statements:
        machine.run(statement)
    return [machine.read(f"${index}") for index in range(outputs)]


def _statements(asm: str) -> Iterable[str]:
    """Instructions and directives, without comments and the braces of scopes."""
    for part in _COMMENT.sub(" ", asm).split(";"):
        statement = part.strip()
        while statement[:1] in ("{", "}"):
            statement = statement[1:].strip()
        if statement:
            yield statement


class _Machine:
    """The registers of one run: their widths in bits and what was written."""

    def __init__(self) -> None:
        self.widths: dict[str, int] = {}
        self.values: dict[str, Register] = {}

    def run(self, statement: str) -> None:
        name, rest = [*statement.split(None, 1), ""][:2]
        if name == ".reg":
            self._declare(rest)
            return
        operands = [found.strip() for found in _OPERAND.findall(rest) if found.strip()]
        if name in ("mov.b32", "mov.b64", "mov.b16"):
            self._move(int(name[5:]), *operands)
            return
        if name not in INSTRUCTIONS:
            raise UnsupportedError(
                f"PTX {name!r} (in {statement!r}) is not emulated; there are: "
                f"{', '.join(sorted(INSTRUCTIONS))}; add it to INSTRUCTIONS of {__name__}"
            )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            result = INSTRUCTIONS[name](*map(self.read, operands[1:]))
        self.write(operands[0], result)

    def _declare(self, rest: str) -> None:
        kind, names = rest.split(None, 1)
        width = _WIDTH.match(kind)
        if width is None:
            raise UnsupportedError(f"PTX registers of type {kind!r} are not emulated")
        for name in (part.strip() for part in names.split(",")):
            found = _RANGE.match(name)
            every = [f"{found[1]}{i}" for i in range(int(found[2]))] if found else [name]
            self.widths.update(dict.fromkeys(every, int(width[1])))

    def _move(self, width: int, target: str, source: str) -> None:
        """``mov``, which also packs and unpacks ``{a, b}``, the lowest bits first."""
        if source.startswith("{"):
            parts = [part.strip() for part in source.strip("{}").split(",")]
            each = np.uint64(width // len(parts))
            value = np.zeros((), np.uint64)
            for index, part in enumerate(parts):
                value = np.asarray(value | (self.read(part) << (np.uint64(index) * each)))
        else:
            value = self.read(source)
        if not target.startswith("{"):
            self.write(target, value)
            return
        names = [part.strip() for part in target.strip("{}").split(",")]
        each = np.uint64(width // len(names))
        for index, name in enumerate(names):
            if name != "_":
                self.write(name, value >> (np.uint64(index) * each))

    def read(self, operand: str) -> Register:
        if operand in self.values:
            return self.values[operand]
        if _INTEGER.match(operand):
            return np.asarray(int(operand.rstrip("U"), 0) & (2**64 - 1), np.uint64)
        if operand.startswith("0f") and len(operand) == 10:
            return np.asarray(int(operand[2:], 16), np.uint64)
        known = "read before it is written" if operand in self.widths else "not declared"
        raise UsageError(f"PTX operand {operand!r} is {known}")

    def write(self, name: str, value: Register) -> None:
        if name not in self.widths:
            raise UsageError(f"PTX register {name!r} is not declared")
        self.values[name] = value & np.uint64(2 ** self.widths[name] - 1)


def _low(value: Register, width: int = 32) -> Register:
    return np.asarray(value & np.uint64(2**width - 1))


def _signed(value: Register, width: int = 32) -> NDArray[np.int64]:
    """The low bits as a two's complement integer."""
    top = np.asarray(value << np.uint64(64 - width)).view(np.int64)
    return np.asarray(top >> np.int64(64 - width))


def _float(value: Register) -> NDArray[np.float32]:
    bits_ = np.asarray(_low(value).astype(np.uint32))
    return np.asarray(bits_.view(np.float32))


def _from_float(value: NDArray[Any]) -> Register:
    with np.errstate(over="ignore"):
        narrow = np.asarray(np.asarray(value).astype(np.float32))
    return np.asarray(narrow.view(np.uint32).astype(np.uint64))


def _prmt(a: Register, b: Register, selector: Register) -> Register:
    """Generic mode: each nibble picks one of eight bytes; its top bit asks for the byte's sign."""
    source = _low(a) | (_low(b) << np.uint64(32))
    result = np.zeros((), np.uint64)
    for index in range(4):
        pick = (selector >> np.uint64(4 * index)) & np.uint64(15)
        byte = (source >> ((pick & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
        sign = np.where(byte >> np.uint64(7), np.uint64(255), np.uint64(0))
        byte = np.where(pick >> np.uint64(3), sign, byte)
        result = result | (byte << np.uint64(8 * index))
    return result


def _dp4a(left: str, right: str) -> Instruction:
    def bytes_of(value: Register, kind: str, index: int) -> NDArray[np.int64]:
        byte = (value >> np.uint64(8 * index)) & np.uint64(255)
        return _signed(byte, 8) if kind == "s32" else byte.view(np.int64)

    def run(a: Register, b: Register, c: Register) -> Register:
        total = _signed(c)
        for index in range(4):
            total = total + bytes_of(a, left, index) * bytes_of(b, right, index)
        return _low(total.view(np.uint64))

    return run


def _lop3(a: Register, b: Register, c: Register, table: Register) -> Register:
    """Any function of three bits: bit (4a + 2b + c) of the table."""
    result = np.zeros((), np.uint64)
    for index in range(8):
        if int(table) >> index & 1:
            term = ~np.zeros((), np.uint64)
            for value, bit in ((a, index >> 2 & 1), (b, index >> 1 & 1), (c, index & 1)):
                term = term & (value if bit else ~value)
            result = result | term
    return _low(result)


def _shift(left: bool, signed: bool = False) -> Instruction:
    """32-bit shifts; amounts above 32 count as 32."""

    def run(value: Register, amount: Register) -> Register:
        by = np.minimum(_low(amount), np.uint64(32))
        if signed:
            return _low((_signed(value) >> by.view(np.int64)).view(np.uint64))
        return _low(_low(value) << by) if left else _low(value) >> by

    return run


def _halves(form: bits.Format, operation: Callable[..., NDArray[Any]]) -> Instruction:
    """An operation on both halves of 32 bits, each rounded once to 16."""

    def run(*operands: Register) -> Register:
        result = np.zeros((), np.uint64)
        for shift in (np.uint64(0), np.uint64(16)):
            values = [bits.decode(_low(each >> shift, 16), form) for each in operands]
            wide = operation(*(value.astype(np.float64) for value in values))
            result = result | (bits.encode(wide, form).astype(np.uint64) << shift)
        return result

    return run


def _pair(decode: Callable[[Register], NDArray[Any]], width: int) -> Instruction:
    """Two narrow floats, the first in the low bits, to two halves of 16 bits."""

    def run(value: Register) -> Register:
        low, high = (decode(_low(value >> np.uint64(i * width), width)) for i in (0, 1))
        first, second = (bits.encode(each, bits.FP16).astype(np.uint64) for each in (low, high))
        return np.asarray(first | (second << np.uint64(16)))

    return run


def _nearest_integer(low: int, high: int) -> Instruction:
    """float32 to an integer, to nearest even, clamped; NaN gives 0."""

    def run(value: Register) -> Register:
        rounded = np.rint(np.nan_to_num(_float(value).astype(np.float64), nan=0.0))
        return _low(np.clip(rounded, low, high).astype(np.int64).view(np.uint64))

    return run


#: Every instruction but ``mov``, by its full name: bits of the operands in, bits of the result out.
INSTRUCTIONS: dict[str, Instruction] = {
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "not.b32": lambda a: ~a,
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "shl.b32": _shift(left=True),
    "shr.u32": _shift(left=False),
    "shr.b32": _shift(left=False),
    "shr.s32": _shift(left=False, signed=True),
    "add.s32": lambda a, b: a + b,
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: _low(a) * _low(b),
    "mul.lo.u32": lambda a, b: _low(a) * _low(b),
    "mad.lo.s32": lambda a, b, c: _low(a) * _low(b) + c,
    "mad.lo.u32": lambda a, b, c: _low(a) * _low(b) + c,
    **{
        f"dp4a.{left}.{right}": _dp4a(left, right)
        for left in ("s32", "u32")
        for right in ("s32", "u32")
    },
    "add.rn.f32": lambda a, b: _from_float(_float(a) + _float(b)),
    "add.f32": lambda a, b: _from_float(_float(a) + _float(b)),
    "mul.rn.f32": lambda a, b: _from_float(_float(a) * _float(b)),
    "mul.f32": lambda a, b: _from_float(_float(a) * _float(b)),
    "fma.rn.f32": lambda a, b, c: _from_float(bits.fused(_float(a), _float(b), _float(c))),
    "add.rn.f16x2": _halves(bits.FP16, np.add),
    "mul.rn.f16x2": _halves(bits.FP16, np.multiply),
    "fma.rn.f16x2": _halves(bits.FP16, bits.fused),
    "fma.rn.bf16x2": _halves(bits.BF16, bits.fused),
    "cvt.f32.f16": lambda a: _from_float(bits.decode(_low(a, 16), bits.FP16)),
    "cvt.rn.f32.s32": lambda a: _from_float(_signed(a)),
    "cvt.rni.s32.f32": _nearest_integer(-(2**31), 2**31 - 1),
    "cvt.rn.f16x2.e2m1x2": _pair(lambda code: bits.E2M1[code.astype(np.int64)], 4),
    "cvt.rn.f16x2.e4m3x2": _pair(lambda code: bits.decode(code, bits.E4M3), 8),
}
#: Instructions without a result that a program run alone does not feel.
NOTHING = frozenset({"bar.warp.sync", "prefetch.global.L2"}) | {
    f"griddepcontrol.{what}" for what in ("launch_dependents", "wait")
}
