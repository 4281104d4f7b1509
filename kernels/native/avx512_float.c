/* Rows times float activations with AVX-512: packed weights, float32 and bfloat16. */
#include "tiles.h"

#if defined(__x86_64__)
#include "avx512.h"

/* E2M1 values of element e of each block: lane l holds block l, whose nibbles are shifted down to
 * where they choose; only the lowest four bits of an index count. */
WMRT_INLINE __m512 values(const __m512i half[2], int e)
{
    const __m512 e2m1 = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2,
                                       -3, -4, -6);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(half[e / 8], 8 * (e % 4) + e / 4 % 2 * 4), e2m1);
}

WMRT_INLINE float factor(int format)
{
    return format == WMRT_NVFP4 ? 256.0f : 1.0f;
}

/* A row again that has odd scales: the same sums, one row of activations after the other. */
static __attribute__((noinline)) void odd_a16(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    for (int b = 0; b < batch; b++) {
        const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k);
        const float *x = (const float *)(t->x + t->pitch * (size_t)b);
        __m512 sum = _mm512_setzero_ps(), part = sum;
        for (; at < end; at += bytes, x += WMRT_UNIT) {
            __m512i half[2] = {_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64)};
            WMRT_UNROLL for (int e = 0; e < 16; e++) {
                __m512 own = _mm512_load_ps(x + 16 * e);
                part = e % 8 ? _mm512_fmadd_ps(values(half, e), own, part)
                             : _mm512_mul_ps(values(half, e), own);
                if (e % 8 == 7)
                    sum = _mm512_fmadd_ps(part, wmrt_scales(format, at + 128, 1), sum);
            }
        }
        wmrt_put(t, b, wmrt_total(sum) * factor(format));
    }
}

/* Eight products of each lane are added, then scaled and added to the row's 16 lanes. */
WMRT_INLINE void packed_a16(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k), *x = t->x;
    __m512 sum[WMRT_TILE_BATCH], part[WMRT_TILE_BATCH];
    __m128i top = _mm_setzero_si128();
    WMRT_UNROLL for (int b = 0; b < batch; b++) sum[b] = _mm512_setzero_ps();
    for (; at < end; at += bytes, x += sizeof(wmrt_a16_unit)) {
        wmrt_fetch(at + WMRT_AHEAD);
        __m512 scale = wmrt_scales(format, at + 128, 0);
        top = wmrt_top(format, top, at + 128);
        __m512i half[2] = {_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64)};
        WMRT_UNROLL for (int e = 0; e < 16; e++) {
            __m512 value = values(half, e);
            WMRT_UNROLL for (int b = 0; b < batch; b++) {
                const float *xb = (const float *)(x + t->pitch * (size_t)b) + 16 * e;
                part[b] = e % 8 ? _mm512_fmadd_ps(value, _mm512_load_ps(xb), part[b])
                                : _mm512_mul_ps(value, _mm512_load_ps(xb));
                if (e % 8 == 7)
                    sum[b] = _mm512_fmadd_ps(part[b], scale, sum[b]);
            }
        }
    }
    if (wmrt_is_odd(format, top)) {
        odd_a16(t, format, batch);
        return;
    }
    WMRT_UNROLL for (int b = 0; b < batch; b++)
        wmrt_put(t, b, wmrt_total(sum[b]) * factor(format));
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
