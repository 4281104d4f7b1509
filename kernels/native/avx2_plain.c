/* Rows of bfloat16 and float32 times float32, with AVX2: the layers that are too small to pack. */
#if defined(__x86_64__)
#include <string.h>

#include "avx2.h"

/* Eight weights from element k on, all of which there are. */
INLINE __m256 eight(int format, const uint8_t *row, int k)
{
    if (format == WMRT_F32)
        return _mm256_loadu_ps((const float *)row + k);
    __m128i bits = _mm_loadu_si128((const __m128i *)((const uint16_t *)row + k));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/* The last weights of a row, fewer than eight, and zeros. */
INLINE __m256 rest(int format, const uint8_t *row, int k, int end)
{
    size_t element = format == WMRT_F32 ? 4 : 2;
    uint8_t copy[32] = {0};
    memcpy(copy, row + element * (size_t)k, element * (size_t)(end - k));
    return eight(format, copy, 0);
}

/* One row times `batch` rows of x, 1 or 2 of them. Elements 8 t to 8 t + 7 go to sum t % 4. */
INLINE void dot(int format, int batch, const wmrt_matrix *m, int n, const float *x, int64_t width,
                float *y, int64_t ldy)
{
    const uint8_t *row = m->rows + n * m->stride;
    __m256 sum[2][4];
    for (int b = 0; b < batch; b++)
        for (int j = 0; j < 4; j++)
            sum[b][j] = _mm256_setzero_ps();
    int k = 0;
    for (; k + 32 <= m->k; k += 32) {
        _mm_prefetch((const char *)row + k * (format == WMRT_F32 ? 4 : 2) + AHEAD, _MM_HINT_T0);
        for (int j = 0; j < 4; j++) {
            __m256 w = eight(format, row, k + 8 * j);
            for (int b = 0; b < batch; b++)
                sum[b][j] = _mm256_fmadd_ps(w, _mm256_load_ps(x + b * width + k + 8 * j),
                                            sum[b][j]);
        }
    }
    for (int j = 0; j < 4; j++, k += 8) {
        if (k >= m->k)
            break;
        __m256 w = k + 8 <= m->k ? eight(format, row, k) : rest(format, row, k, m->k);
        for (int b = 0; b < batch; b++)
            sum[b][j] = _mm256_fmadd_ps(w, _mm256_load_ps(x + b * width + k), sum[b][j]);
    }
    for (int b = 0; b < batch; b++) {
        __m256 low = _mm256_add_ps(sum[b][0], sum[b][1]);
        __m256 high = _mm256_add_ps(sum[b][2], sum[b][3]);
        y[b * ldy + n] = wmrt_scaled(m, n, avx2_sum(_mm256_add_ps(low, high)));
    }
}

INLINE void every(int format, const wmrt_matrix *m, const float *x, int batch, int begin, int end,
                  float *y, int64_t ldy)
{
    int64_t width = (int64_t)wmrt_units(m->k) * WMRT_UNIT;
    for (int n = begin; n < end; n++) {
        int b = 0; /* a row stays in the first cache for all pairs */
        for (; b + 2 <= batch; b += 2)
            dot(format, 2, m, n, x + b * width, width, y + b * ldy, ldy);
        if (b < batch)
            dot(format, 1, m, n, x + b * width, width, y + b * ldy, ldy);
    }
}

void wmrt_avx2_f32(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                   float *y, int64_t ldy)
{
    every(WMRT_F32, m, prepared, batch, begin, end, y, ldy);
}

void wmrt_avx2_bf16(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                    float *y, int64_t ldy)
{
    every(WMRT_BF16, m, prepared, batch, begin, end, y, ldy);
}

AVX2_END
#endif
