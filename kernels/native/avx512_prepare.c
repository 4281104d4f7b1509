/* Activations as the AVX-512 kernels take them; avx512.h says in what they differ. */
#include "tiles.h"

#if defined(__x86_64__)
#include "avx512.h"

/* 16 elements from x, of which `count` exist; the others are 0. */
WMRT_INLINE __m512 sixteen(const float *x, int count)
{
    if (count >= 16)
        return _mm512_loadu_ps(x);
    return count < 1 ? _mm512_setzero_ps()
                     : _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), x);
}

/* To bfloat16, half to even, and widened again. */
WMRT_INLINE __m512 rounded(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    bits = _mm512_and_si512(bits, _mm512_set1_epi32(-0x10000));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(bits);
}

/* Codes of 16 elements, one of NaN being 0: that is 0 / 0, or of a scale that is not finite. */
WMRT_INLINE __m128i codes(__m512 x, __m512 scale)
{
    __m512 q = _mm512_div_ps(x, scale);
    q = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(q, q, _CMP_ORD_Q), q);
    q = _mm512_min_ps(_mm512_max_ps(q, _mm512_set1_ps(-127)), _mm512_set1_ps(127));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(q));
}

/* Blocks 2 g and 2 g + 1: a group, with one scale. Its largest magnitude is found among the bits,
 * where NaN is the largest, so that it is not lost. */
WMRT_INLINE void group(const float *x, int count, int g, __m128i block[16], float *scale)
{
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512 a = sixteen(x, count), b = sixteen(x + 16, count - 16);
    __m512i largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), size),
                                       _mm512_and_si512(_mm512_castps_si512(b), size));
    int32_t bits = _mm512_reduce_max_epi32(largest);
    float amax;
    __builtin_memcpy(&amax, &bits, sizeof amax);
    scale[2 * g] = scale[2 * g + 1] = amax / 127.0f;
    block[2 * g] = codes(a, _mm512_set1_ps(scale[2 * g]));
    block[2 * g + 1] = codes(b, _mm512_set1_ps(scale[2 * g]));
}

WMRT_INLINE __m512i joined(const __m128i block[4])
{
    __m512i four = _mm512_castsi128_si512(block[0]);
    four = _mm512_inserti32x4(four, block[1], 1);
    four = _mm512_inserti32x4(four, block[2], 2);
    return _mm512_inserti32x4(four, block[3], 3);
}

/* Word w = 2 h + p of each of 16 blocks -> 16 words side by side, for each w. */
WMRT_INLINE void transposed(const __m128i block[16], __m512i word[4])
{
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25,
                                            29);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    __m512i a = joined(block), b = joined(block + 4), c = joined(block + 8), d = joined(block + 12);
    for (int h = 0; h < 2; h++) {
        __m512i low = _mm512_permutex2var_epi32(a, h ? second : first, b);
        __m512i high = _mm512_permutex2var_epi32(c, h ? second : first, d);
        word[2 * h] = _mm512_shuffle_i64x2(low, high, 0x44);
        word[2 * h + 1] = _mm512_shuffle_i64x2(low, high, 0xee);
    }
}

static void unit_a8(const float *x, int count, int shift, wmrt_a8_unit *to)
{
    __m128i block[16];
    __m512i word[4], sum = _mm512_setzero_si512();
    for (int g = 0; g < 8; g++)
        group(x + 32 * g, count - 32 * g, g, block, to->scale);
    transposed(block, word);
    for (int w = 0; w < 4; w++) {
        _mm512_storeu_si512(to->code + 64 * w, word[w]);
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), word[w]);
    }
    _mm512_storeu_si512(to->offset, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-shift)));
}

static void unit_a16(const float *x, int count, wmrt_a16_unit *to)
{
    for (int l = 0; l < 16; l++) {
        float value[16];
        _mm512_storeu_ps(value, rounded(sixteen(x + 16 * l, count - 16 * l)));
        for (int e = 0; e < 16; e++)
            to->value[16 * e + l] = value[e];
    }
}

static void unit_plain(const float *x, int count, int activation, float *to)
{
    for (int i = 0; i < WMRT_UNIT; i += 16) {
        __m512 v = sixteen(x + i, count - i);
        _mm512_storeu_ps(to + i, activation == WMRT_A_BF16 ? rounded(v) : v);
    }
}

void wmrt_avx512_prepare(int format, int activation, const float *x, int k, int begin, int end,
                         void *prepared)
{
    for (int u = begin; u < end; u++) {
        const float *from = x + (int64_t)u * WMRT_UNIT;
        int count = k - u * WMRT_UNIT;
        if (!wmrt_packed(format))
            unit_plain(from, count, activation, (float *)prepared + (int64_t)u * WMRT_UNIT);
        else if (activation == WMRT_A_INT8_G32)
            unit_a8(from, count, format == WMRT_INT4_G128 ? 8 : 12, (wmrt_a8_unit *)prepared + u);
        else
            unit_a16(from, count, (wmrt_a16_unit *)prepared + u);
    }
}

#if defined(__clang__) && !defined(WMRT_AVX512_HEADER)
#pragma clang attribute pop
#endif
#endif
