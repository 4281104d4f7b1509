/* Activations as the kernels take them, with AVX2: the bits that portable_prepare.c gives. */
#if defined(__x86_64__)
#include <string.h>

#include "avx2.h"

#define GROUP 32 /* activations that share a scale */

/* The largest magnitude of 32, compared as integers, where NaN is the largest. */
INLINE float largest(const __m256 *x)
{
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x[i]),
                                                       _mm256_set1_epi32(0x7fffffff)));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1))));
}

/* x / scale, half to even, within +-127; 0 where the quotient is NaN. Divided, not multiplied by
 * the reciprocal: that rounds twice, and would give other codes than the reference. */
INLINE __m256i codes(__m256 x, __m256 scale)
{
    __m256 q = _mm256_div_ps(x, scale);
    q = _mm256_and_ps(q, _mm256_cmp_ps(q, q, _CMP_ORD_Q));
    q = _mm256_min_ps(_mm256_max_ps(q, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    return _mm256_cvtps_epi32(q);
}

/* Group g of a unit: its blocks 2 g and 2 g + 1, each four words of four codes, 64 bytes apart. */
INLINE void group_a8(const float *from, int shift, int g, wmrt_a8_unit *to)
{
    __m256 x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm256_loadu_ps(from + 8 * i);
    float scale = largest(x) / 127.0f;
    __m256 wide = _mm256_set1_ps(scale);
    __m256i a = _mm256_packs_epi32(codes(x[0], wide), codes(x[1], wide));
    __m256i b = _mm256_packs_epi32(codes(x[2], wide), codes(x[3], wide));
    /* Words 0 2 4 6 | 1 3 5 7 of the group: packing stays within halves of a register. */
    __m256i all = _mm256_packs_epi16(a, b);
    __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    __m256i words = _mm256_permutevar8x32_epi32(all, order); /* of both blocks in turn */
    __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    int8_t *code = to->code + 8 * g;
    _mm_storel_epi64((__m128i *)code, low);
    _mm_storel_epi64((__m128i *)(code + 64), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64((__m128i *)(code + 128), high);
    _mm_storel_epi64((__m128i *)(code + 192), _mm_unpackhi_epi64(high, high));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16((short)shift));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    _mm_storel_epi64((__m128i *)(to->offset + 2 * g), _mm_hadd_epi32(sum, sum));
    to->scale[2 * g] = to->scale[2 * g + 1] = scale;
}

/* To bfloat16, half to even, and widened again; NaN stays one. */
INLINE __m256 rounded(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    bits = _mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000));
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(_mm256_castsi256_ps(bits), nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static void unit_a16(const float *x, wmrt_a16_unit *to)
{
    for (int l = 0; l < 16; l++)
        for (int h = 0; h < 2; h++) {
            __m256 eight = rounded(_mm256_loadu_ps(x + 16 * l + 8 * h));
            _mm_store_ps(to->value + 128 * h + 4 * l, _mm256_castps256_ps128(eight));
            _mm_store_ps(to->value + 128 * h + 64 + 4 * l, _mm256_extractf128_ps(eight, 1));
        }
}

static void unit_plain(const float *x, int activation, float *to)
{
    for (int i = 0; i < WMRT_UNIT; i += 8) {
        __m256 eight = _mm256_loadu_ps(x + i);
        _mm256_store_ps(to + i, activation == WMRT_A_BF16 ? rounded(eight) : eight);
    }
}

void wmrt_avx2_prepare(int format, int activation, const float *x, int k, int begin, int end,
                       void *prepared)
{
    int shift = format == WMRT_INT4_G128 ? 8 : 12;
    for (int u = begin; u < end; u++) {
        float tail[WMRT_UNIT] = {0};
        const float *from = x + (int64_t)u * WMRT_UNIT;
        int left = k - u * WMRT_UNIT;
        if (left < WMRT_UNIT)
            from = memcpy(tail, from, (size_t)left * sizeof *tail);
        if (!wmrt_packed(format))
            unit_plain(from, activation, (float *)prepared + (int64_t)u * WMRT_UNIT);
        else if (activation == WMRT_A_BF16)
            unit_a16(from, (wmrt_a16_unit *)prepared + u);
        else
            for (int g = 0; g < WMRT_UNIT / GROUP; g++)
                group_a8(from + GROUP * g, shift, g, (wmrt_a8_unit *)prepared + u);
    }
}

AVX2_END
#endif
