/* What the AVX2 kernels share. Include it first: it switches the instruction set on, which clang
 * has to be told the end of (AVX2_END).
 */
#ifndef WMRT_AVX2_H
#define WMRT_AVX2_H

#if defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#define AVX2_END _Pragma("clang attribute pop")
#else
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>
#define AVX2_END
#endif

#include "rows.h"

#define INLINE static inline __attribute__((always_inline))
#define AHEAD 8192 /* bytes that weights are prefetched before their use */

WMRT_HIDDEN wmrt_prepare wmrt_avx2_prepare;
WMRT_HIDDEN wmrt_rows wmrt_avx2_nvfp4_a8, wmrt_avx2_mxfp4_a8, wmrt_avx2_int4_a8;
WMRT_HIDDEN wmrt_rows wmrt_avx2_nvfp4_a16, wmrt_avx2_mxfp4_a16;
WMRT_HIDDEN wmrt_rows wmrt_avx2_f32, wmrt_avx2_bf16;

/* Lines of what follows. Share of the prefetched stream's rate that one thread reached on a busy
 * Zen 3, rotated over 384 MB, lines x bytes ahead:
 *
 *                        3 x 8192   2 x 8192   2 x 16384   3 x 2048
 *   nvfp4, K = 2048         90%     82 to 101%  91 to 99%
 *   nvfp4, K = 5632      76 to 84%  74 to 86%   78 to 90%      61%
 *   mxfp4, K = 2048        102%         97%        95%
 *   int4-g128, K = 2048    101%         91%        92%
 */
INLINE void avx2_prefetch(int format, const uint8_t *unit)
{
    int lines = format == WMRT_NVFP4 ? 2 : 3, ahead = format == WMRT_NVFP4 ? 2 * AHEAD : AHEAD;
    for (int line = 0; line < lines; line++)
        _mm_prefetch((const char *)unit + ahead + 64 * line, _MM_HINT_T0);
}

/* Sum of eight lanes: 4 and 4, 2 and 2, 1 and 1. */
INLINE float avx2_sum(__m256 v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The table that decodes a nibble: 2 x E2M1 + 12. */
INLINE __m256i avx2_twice_e2m1_plus_12(void)
{
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

INLINE __m256i avx2_low(__m256i bytes)
{
    return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

INLINE __m256i avx2_high(__m256i bytes)
{
    return avx2_low(_mm256_srli_epi16(bytes, 4));
}

/* The largest scale byte so far, as unsigned: what tells rows with a scale that no fast path takes
 * (NaN, or an E4M3 with a sign). No checkpoint has them; one more of 50 instructions per unit. */
INLINE __m128i avx2_top(int format, __m128i top, const uint8_t *scales)
{
    if (format == WMRT_NVFP4)
        return _mm_max_epu8(top, _mm_loadu_si128((const __m128i *)scales));
    if (format == WMRT_MXFP4)
        return _mm_max_epu8(top, _mm_loadl_epi64((const __m128i *)scales));
    return top;
}

INLINE int avx2_is_odd(int format, __m128i top)
{
    if (format == WMRT_INT4_G128)
        return 0;
    __m128i least = _mm_set1_epi8((char)(format == WMRT_NVFP4 ? 0x7f : 0xff));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(top, least), top)) != 0;
}

#endif
