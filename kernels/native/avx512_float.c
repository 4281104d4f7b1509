/* Rows times float activations with AVX-512: packed weights, float32 and bfloat16. */
#include "tiles.h"

#if defined(__x86_64__)
#include "avx512.h"

/* The scale of each of blocks 4 part to 4 part + 3, four times: for elements side by side. */
WMRT_INLINE __m512 spread(__m512 scale, int part)
{
    __m512i block = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(_mm512_add_epi32(block, _mm512_set1_epi32(4 * part)), scale);
}

/* E2M1 values of blocks 4 part to 4 part + 3: value[2 h + p] are nibbles p of half h. Of an index
 * only the lowest four bits count. */
WMRT_INLINE void values(const uint8_t *unit, int part, __m512 value[4])
{
    const __m512 e2m1 = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2,
                                       -3, -4, -6);
    WMRT_UNROLL for (int h = 0; h < 2; h++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(unit + 64 * h + 16 * part));
        __m512i wide = _mm512_cvtepu8_epi32(bytes);
        value[2 * h] = _mm512_permutexvar_ps(wide, e2m1);
        value[2 * h + 1] = _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), e2m1);
    }
}

/* Four products of each lane are added, then scaled and added to the row's 16 lanes. */
WMRT_INLINE void packed_a16(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k), *x = t->x;
    __m512 sum[WMRT_TILE_BATCH], value[4];
    WMRT_UNROLL for (int b = 0; b < batch; b++) sum[b] = _mm512_setzero_ps();
    for (; at < end; at += bytes, x += sizeof(wmrt_a16_unit)) {
        wmrt_fetch(at + WMRT_AHEAD);
        __m512 scales = wmrt_scales(format, at + 128);
        WMRT_UNROLL for (int part = 0; part < 4; part++) {
            values(at, part, value);
            __m512 scale = spread(scales, part);
            WMRT_UNROLL for (int b = 0; b < batch; b++) {
                const float *xb = (const float *)(x + t->pitch * (size_t)b) + 16 * part;
                __m512 four = _mm512_mul_ps(value[0], _mm512_load_ps(xb));
                WMRT_UNROLL for (int j = 1; j < 4; j++)
                    four = _mm512_fmadd_ps(value[j], _mm512_load_ps(xb + 64 * j), four);
                sum[b] = _mm512_fmadd_ps(four, scale, sum[b]);
            }
        }
    }
    WMRT_UNROLL for (int b = 0; b < batch; b++)
        wmrt_put(t, b, wmrt_total(sum[b]) * (format == WMRT_NVFP4 ? 256.0f : 1.0f));
}

/* 16 weights from element k on, as float32; of the row's last ones `count`, the others 0. */
WMRT_INLINE __m512 weights(int format, const uint8_t *row, int k, int count)
{
    __mmask16 mask = count < 16 ? (__mmask16)((1u << count) - 1) : (__mmask16)0xffff;
    if (format == WMRT_F32)
        return count < 16 ? _mm512_maskz_loadu_ps(mask, row + 4 * (int64_t)k)
                          : _mm512_loadu_ps(row + 4 * (int64_t)k);
    row += 2 * (int64_t)k;
    __m256i bits = count < 16 ? _mm256_maskz_loadu_epi16(mask, row)
                              : _mm256_loadu_si256((const __m256i *)row);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* Weights from element k on, of which `count` exist, times those of each x. */
WMRT_INLINE void plain_step(const wmrt_tile *t, int format, int batch, int k, int count,
                            __m512 *sum)
{
    __m512 w = weights(format, t->row, k, count);
    WMRT_UNROLL for (int b = 0; b < batch; b++) {
        const float *xb = (const float *)(t->x + t->pitch * (size_t)b) + k;
        sum[b] = _mm512_fmadd_ps(w, _mm512_load_ps(xb), sum[b]);
    }
}

/* Element k goes to lane k % 16 of sum k / 16 % 4: four, since one would wait for itself. */
WMRT_INLINE void plain(const wmrt_tile *t, int format, int batch)
{
    int size = format == WMRT_F32 ? 4 : 2, count = t->matrix->k, k = 0;
    __m512 sum[4][4];
    WMRT_UNROLL for (int i = 0; i < 4 * batch; i++) sum[i / batch][i % batch] = _mm512_setzero_ps();
    for (; k + 64 <= count; k += 64) {
        WMRT_UNROLL for (int i = 0; i < size; i++)
            _mm_prefetch((const char *)t->row + size * (int64_t)k + 64 * i + WMRT_AHEAD,
                         _MM_HINT_T0);
        WMRT_UNROLL for (int i = 0; i < 4; i++)
            plain_step(t, format, batch, k + 16 * i, 16, sum[i]);
    }
    WMRT_UNROLL for (int i = 0; i < 4; i++)
        if (k + 16 * i < count)
            plain_step(t, format, batch, k + 16 * i, count - k - 16 * i, sum[i]);
    WMRT_UNROLL for (int b = 0; b < batch; b++) {
        __m512 even = _mm512_add_ps(sum[0][b], sum[2][b]);
        wmrt_put(t, b, wmrt_total(_mm512_add_ps(even, _mm512_add_ps(sum[1][b], sum[3][b]))));
    }
}

WMRT_TILES_8(wmrt_avx512_nvfp4_a16, packed_a16, WMRT_NVFP4)
WMRT_TILES_8(wmrt_avx512_mxfp4_a16, packed_a16, WMRT_MXFP4)
WMRT_TILES_4(wmrt_avx512_f32, plain, WMRT_F32)
WMRT_TILES_4(wmrt_avx512_bf16, plain, WMRT_BF16)

#if defined(__clang__) && !defined(WMRT_AVX512_HEADER)
#pragma clang attribute pop
#endif
#endif
