"""Reading disassembly, on a listing with every form that matters."""

from __future__ import annotations

import pytest

from wmrt.kernels.triton import sass

LISTING = """
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   LDG.E.EF.64 R2, desc[UR4][R2.64] ;
.L_x_2:
        /*0020*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0030*/               @P0 LDG.E.128 R8, desc[UR6][R8.64] ;
        /*0040*/              @!P1 LDG.E.EF.128.CONSTANT R12, desc[UR6][R12.64] ;
        /*0050*/             @!UP2 LDG.E.EF.128 R16, desc[UR6][R16.64] ;
        /*0060*/                   IDP.4A.S8.S8 R20, R12, R8, R20 ;
        /*0070*/              @!P1 BRA `(.L_x_0) ;
        /*0080*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0090*/                   BRA.U !UP0, `(.L_x_2) ;
.L_x_3:
        /*00a0*/                   FADD R1, R1, R2 ;
        /*00b0*/                   LDL R3, [R1] ;
        /*00c0*/                   LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64] ;
        /*00d0*/              @!P1 BRA `(.L_x_3) ;
        /*00e0*/               @P3 BRA `(.L_x_4) ;
        /*00f0*/                   LDG.E.EF.U8 R3, desc[UR4][R2.64] ;
.L_x_4:
        /*0100*/                   EXIT ;
.L_x_5:
        /*0110*/                   BRA `(.L_x_5);
        /*0120*/                   NOP;
"""


@pytest.fixture(scope="module")
def code() -> list[sass.Instruction]:
    return sass.parse(LISTING)


def test_instructions_without_predicates_padding_and_the_last_trap(
    code: list[sass.Instruction],
) -> None:
    assert [each.name for each in code[:3]] == ["LDC", "LDG.E.EF.64", "S2R"]
    assert len(code) == 17 and code[-1].name == "EXIT"
    assert [each.target for each in code if each.target is not None] == [3, 2, 10, 16]


def test_names_are_matched_part_by_part(code: list[sass.Instruction]) -> None:
    assert sass.count(code, "IDP.4A") == sass.count(code, "IDP") == 1
    assert sass.count(code, "IDP.4") == 0 and sass.count(code, "ID") == 0
    assert sass.count(code, "LDL", "STL") == 1
    assert sass.count(code, "LDG") == 5 and sass.count(code, "BAR") == 1


def test_weights_are_the_evict_first_loads(code: list[sass.Instruction]) -> None:
    assert sass.weight_loads(code) == [64, 128, 128, 8]


def test_the_main_region_is_the_innermost_loop_with_weights(code: list[sass.Instruction]) -> None:
    assert sass.main_region(code) == sass.Region(3, 8, looped=True)
    assert sass.main_region(code[10:]) == sass.Region(0, 7, looped=False)


def test_of_two_loops_the_one_with_more_weights() -> None:
    load, back = "LDG.E.EF.128", sass.Instruction
    code = [back(load, None), back("BRA", 0), back(load, None), back(load, None), back("BRA", 2)]
    assert sass.main_region(code) == sass.Region(2, 5, looped=True)


def test_functions_behind_the_end_are_not_counted() -> None:
    names = ["LDG.E.EF.128", "EXIT", "FADD", "EXIT", "FMUL", "RET.REL.NODEC"]
    code = [sass.Instruction(name, None) for name in names]
    assert sass.main_region(code) == sass.Region(0, 4, looped=False)
    assert sass.main_region(code[:5]) == sass.Region(0, 5, looped=False)
