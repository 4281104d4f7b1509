/* Packed rows times bfloat16 activations in float32, with AVX2: what int8 activations are compared
 * with.
 */
#if defined(__x86_64__)
#include <string.h>

#include "avx2.h"

/* The weights of a unit as 2 x E2M1, in the order of the activations. */
INLINE void decode(const uint8_t *unit, int8_t *w)
{
    for (int i = 0; i < 4; i++) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)(unit + 32 * i));
        __m256i table = _mm256_sub_epi8(avx2_twice_e2m1_plus_12(), _mm256_set1_epi8(12));
        __m256i *to = (__m256i *)(w + 128 * (i / 2) + 32 * (i % 2));
        _mm256_store_si256(to, _mm256_shuffle_epi8(table, avx2_low(bytes)));
        _mm256_store_si256(to + 2, _mm256_shuffle_epi8(table, avx2_high(bytes)));
    }
}

INLINE int four_bytes(const uint8_t *at)
{
    int word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Half the scales of the 16 blocks, as the weights are doubled; exact, subnormals included. */
INLINE void scales(int format, const uint8_t *at, float *scale)
{
    for (int s = 0; s < 2; s++) {
        __m256 eight;
        if (format == WMRT_NVFP4) { /* the bits of float16, times 2^-8 */
            __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(at + 8 * s)));
            eight = _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(b, 7)), _mm256_set1_ps(0x1p7f));
        } else {
            __m128i b = _mm_cvtsi32_si128(four_bytes(at + 4 * s));
            __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_unpacklo_epi8(b, b)), 23);
            bits = _mm256_max_epi32(bits, _mm256_set1_epi32(0x400000)); /* 2^-127 is subnormal */
            eight = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
        }
        _mm256_store_ps(scale + 8 * s, eight);
    }
}

/* Two blocks' words i of four weights, times their scales. */
INLINE __m256 values(const int8_t *w, int i, int pair, __m256 scale)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(w + 64 * i + 8 * pair));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale);
}

INLINE void unit(int format, const uint8_t *at, const wmrt_a16_unit *x, int units, int batch,
                 __m256 *sum)
{
    _Alignas(32) int8_t w[WMRT_UNIT];
    _Alignas(32) float scale[16];
    decode(at, w);
    scales(format, at + WMRT_UNIT / 2, scale);
    for (int pair = 0; pair < 8; pair++) {
        __m128 low = _mm_set1_ps(scale[2 * pair]), high = _mm_set1_ps(scale[2 * pair + 1]);
        __m256 both = _mm256_set_m128(high, low);
        __m256 v[4];
        for (int i = 0; i < 4; i++)
            v[i] = values(w, i, pair, both);
        for (int b = 0; b < batch; b++) {
            const float *to = x[(int64_t)b * units].value + 8 * pair;
            __m256 t = _mm256_mul_ps(v[0], _mm256_load_ps(to));
            for (int i = 1; i < 4; i++)
                t = _mm256_fmadd_ps(v[i], _mm256_load_ps(to + 64 * i), t);
            sum[b] = _mm256_add_ps(sum[b], t);
        }
    }
}

INLINE void every(int format, const wmrt_matrix *m, const wmrt_a16_unit *x, int batch, int begin,
                  int end, float *y, int64_t ldy)
{
    int units = wmrt_units(m->k), bytes = wmrt_unit_bytes(format);
    for (int n = begin; n < end; n++) {
        const uint8_t *at = m->rows + n * m->stride;
        __m256 sum[WMRT_BATCH];
        __m128i top = _mm_setzero_si128();
        for (int b = 0; b < batch; b++)
            sum[b] = _mm256_setzero_ps();
        for (int u = 0; u < units; u++, at += bytes) {
            avx2_prefetch(format, at);
            unit(format, at, x + u, units, batch, sum);
            top = avx2_top(format, top, at + WMRT_UNIT / 2);
        }
        for (int b = 0; b < batch; b++)
            y[b * ldy + n] = wmrt_scaled(m, n, avx2_sum(sum[b]));
        if (avx2_is_odd(format, top))
            wmrt_portable_a16(m, x, batch, n, n + 1, y, ldy);
    }
}

void wmrt_avx2_nvfp4_a16(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                         float *y, int64_t ldy)
{
    every(WMRT_NVFP4, m, prepared, batch, begin, end, y, ldy);
}

void wmrt_avx2_mxfp4_a16(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                         float *y, int64_t ldy)
{
    every(WMRT_MXFP4, m, prepared, batch, begin, end, y, ldy);
}

AVX2_END
#endif
