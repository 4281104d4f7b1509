/* What the NEON kernels share. Include it last: functions below it are compiled for ARMv8.2 with
 * dot products.
 */
#ifndef WMRT_NEON_H
#define WMRT_NEON_H

#include "tiles.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#ifndef __ARM_FEATURE_DOTPROD /* clang before 16 hides vdotq_s32 without it */
#define __ARM_FEATURE_DOTPROD 1
#endif
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#pragma GCC optimize("no-schedule-insns") /* it loads so early that sums go to the stack */
#endif
#include <arm_neon.h>

WMRT_HIDDEN wmrt_prepare wmrt_neon_prepare;
WMRT_HIDDEN wmrt_rows wmrt_neon_f32, wmrt_neon_bf16;
WMRT_HIDDEN wmrt_rows wmrt_neon_nvfp4_a16, wmrt_neon_mxfp4_a16;
WMRT_HIDDEN wmrt_rows wmrt_neon_nvfp4_a8, wmrt_neon_mxfp4_a8, wmrt_neon_int4_a8;

/* A unit's bytes, asked for ahead of time: 132 to 144, in at most three lines and a bit. */
WMRT_INLINE void wmrt_fetch(const uint8_t *at)
{
    __builtin_prefetch(at);
    __builtin_prefetch(at + 64);
    __builtin_prefetch(at + 128);
}

/* The 16 E4M3 scales of a unit's blocks, times 2^-8: moved up by 7 bits each is a float16, also
 * where it is subnormal. Those of checked weights are neither negative nor NaN. */
WMRT_INLINE void wmrt_e4m3(const uint8_t *at, float32x4_t scale[4])
{
    uint8x16_t all = vld1q_u8(at);
    float16x8_t low = vreinterpretq_f16_u16(vshll_n_u8(vget_low_u8(all), 7));
    float16x8_t high = vreinterpretq_f16_u16(vshll_high_n_u8(all, 7));
    scale[0] = vcvt_f32_f16(vget_low_f16(low));
    scale[1] = vcvt_high_f32_f16(low);
    scale[2] = vcvt_f32_f16(vget_low_f16(high));
    scale[3] = vcvt_high_f32_f16(high);
}

/* The 8 E8M0 scales of a unit's blocks: exponents, of which 0 is 2^-127. */
WMRT_INLINE void wmrt_e8m0(const uint8_t *at, float32x4_t scale[2])
{
    const uint32x4_t least = vdupq_n_u32(0x400000);
    uint16x8_t wide = vshll_n_u8(vld1_u8(at), 7);
    uint32x4_t low = vshll_n_u16(vget_low_u16(wide), 16), high = vshll_high_n_u16(wide, 16);
    scale[0] = vreinterpretq_f32_u32(vmaxq_u32(low, least));
    scale[1] = vreinterpretq_f32_u32(vmaxq_u32(high, least));
}

#endif
