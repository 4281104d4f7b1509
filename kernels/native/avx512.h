/* What the AVX-512 kernels share. Include it last: functions below it are compiled for AVX-512.
 *
 * Activations are prepared as in kernels.h but for two things. offset[l] is negated, so that a dot
 * product starts by loading it and no instruction is spent on it. value[16 e + l] is element e of
 * block l, so that a register holds one element of each block, as it holds one scale of each.
 *
 * WMRT_AVX512_HEADER, if defined, names what to include in place of immintrin.h: the tests compile
 * the same lines against an emulation, for processors without AVX-512.
 */
#ifndef WMRT_AVX512_H
#define WMRT_AVX512_H

#include "tiles.h"

#if defined(WMRT_AVX512_HEADER)
#include WMRT_AVX512_HEADER
#elif defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c"))),                 \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#include <immintrin.h>
#endif

WMRT_HIDDEN wmrt_prepare wmrt_avx512_prepare;
WMRT_HIDDEN wmrt_rows wmrt_avx512_f32, wmrt_avx512_bf16;
WMRT_HIDDEN wmrt_rows wmrt_avx512_nvfp4_a16, wmrt_avx512_mxfp4_a16;
WMRT_HIDDEN wmrt_rows wmrt_avx512_nvfp4_a8, wmrt_avx512_mxfp4_a8, wmrt_avx512_int4_a8;

/* The sum of 16 lanes, halves first. */
WMRT_INLINE float wmrt_total(__m512 v)
{
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
    __m128 four = _mm512_castps512_ps128(v);
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

/* A unit's bytes, asked for ahead of time: 132 to 144, in at most three lines and a bit. */
WMRT_INLINE void wmrt_fetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at, _MM_HINT_T0);
    _mm_prefetch((const char *)at + 64, _MM_HINT_T0);
    _mm_prefetch((const char *)at + 128, _MM_HINT_T0);
}

/* The largest scale byte so far, as unsigned: what tells rows with a scale that the fast path does
 * not take (NaN, an E4M3 with a sign, or an E8M0 of 2^105 and more, times which a sum of 2^17 may
 * not fit a float32). No checkpoint has them; one more instruction per unit. */
WMRT_INLINE __m128i wmrt_top(int format, __m128i top, const uint8_t *at)
{
    if (format == WMRT_INT4_G128)
        return top;
    return _mm_max_epu8(top, format == WMRT_NVFP4 ? _mm_loadu_si128((const __m128i *)at)
                                                  : _mm_loadl_epi64((const __m128i *)at));
}

WMRT_INLINE int wmrt_is_odd(int format, __m128i top)
{
    if (format == WMRT_INT4_G128)
        return 0;
    __m128i least = _mm_set1_epi8((char)(format == WMRT_NVFP4 ? 0x7f : 0xe8));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(top, least), top)) != 0;
}

/* Scales of a unit's 16 blocks, for NVFP4 times 2^-8: an E4M3 moved up by 7 bits is a float16, also
 * where it is subnormal. `odd` ones may be NaN, and an E4M3 negative. */
WMRT_INLINE __m512 wmrt_scales(int format, const uint8_t *at, int odd)
{
    if (format == WMRT_NVFP4) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
        if (odd) {
            const __m256i size = _mm256_set1_epi16(0x3f80);
            __m256i sign = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
            half = _mm256_and_si256(half, size);
            __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(half, size),
                                           _mm256_set1_epi16(0x7e00));
            sign = _mm256_and_si256(sign, _mm256_set1_epi16((short)0x8000));
            half = _mm256_or_si256(_mm256_or_si256(half, nan), sign);
        }
        return _mm512_cvtph_ps(half);
    }
    if (format == WMRT_MXFP4) { /* an E8M0 is an exponent, of which 0 is 2^-127 */
        __m128i eight = _mm_loadl_epi64((const __m128i *)at);
        __m512i wide = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(eight, eight));
        __m512i bits = _mm512_slli_epi32(wide, 23);
        if (odd) {
            __mmask16 nan = _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(0xff));
            bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
        }
        return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x400000)));
    }
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    const __m512i which = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m128 two = _mm_cvtph_ps(_mm_cvtsi32_si128(pair));
    return _mm512_permutexvar_ps(which, _mm512_castps128_ps512(two));
}

#endif
