/* Rows of packed weights times int8 activations with AVX512-VNNI, and the table of the set. */
#include "tiles.h"

#if defined(__x86_64__)
#include "avx512.h"

typedef struct {
    __m512i code[4]; /* unsigned, 64 each, in the order of wmrt_a8_unit */
    __m512 scale;    /* of each block */
} unit;

/* E2M1 as 2 x E2M1 + 12, INT4 as it is stored, which is q + 8. */
WMRT_INLINE unit decoded(int format, const uint8_t *at, int odd)
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i e2m1 = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    unit u;
    WMRT_UNROLL for (int h = 0; h < 2; h++) {
        __m512i half = _mm512_loadu_si512(at + 64 * h);
        __m512i first = _mm512_and_si512(half, low);
        __m512i second = _mm512_and_si512(_mm512_srli_epi16(half, 4), low);
        u.code[2 * h] = format == WMRT_INT4_G128 ? first : _mm512_shuffle_epi8(e2m1, first);
        u.code[2 * h + 1] = format == WMRT_INT4_G128 ? second : _mm512_shuffle_epi8(e2m1, second);
    }
    u.scale = wmrt_scales(format, at + 128, odd);
    return u;
}

/* Dot products of 16; where both scales hold for 32, of 32, in both lanes of each. They start by
 * taking back what the codes are shifted by. Exact, and so is the conversion: below 2^17. */
WMRT_INLINE __m512 dots(int format, const unit *u, const wmrt_a8_unit *x)
{
    __m512i dot = _mm512_load_si512(x->offset);
    WMRT_UNROLL for (int i = 0; i < 4; i++)
        dot = _mm512_dpbusd_epi32(dot, u->code[i], _mm512_load_si512(x->code + 64 * i));
    if (format != WMRT_NVFP4)
        dot = _mm512_add_epi32(dot, _mm512_shuffle_epi32(dot, 0xb1));
    return _mm512_cvtepi32_ps(dot);
}

/* What a sum lacks: 2^8 of the E4M3 scales, 1/2 of 2 x E2M1, 1/2 of both lanes. */
WMRT_INLINE float factor(int format)
{
    return format == WMRT_NVFP4 ? 128.0f : format == WMRT_MXFP4 ? 0.25f : 0.5f;
}

/* A row again that has odd scales: the same sums, one row of activations after the other. The
 * factor comes before the scale, so that nothing overflows that fits in the end. */
static __attribute__((noinline)) void odd_a8(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    for (int b = 0; b < batch; b++) {
        const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k);
        const wmrt_a8_unit *x = (const wmrt_a8_unit *)(t->x + t->pitch * (size_t)b);
        __m512 sum = _mm512_setzero_ps();
        for (; at < end; at += bytes, x++) {
            unit u = decoded(format, at, 1);
            __m512 dot = _mm512_mul_ps(dots(format, &u, x), _mm512_set1_ps(factor(format)));
            sum = _mm512_fmadd_ps(_mm512_mul_ps(dot, u.scale), _mm512_load_ps(x->scale), sum);
        }
        wmrt_put(t, b, wmrt_total(sum));
    }
}

/* A sum is formed in 16 lanes, one of each block of a unit, unit by unit. */
WMRT_INLINE void packed_a8(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k), *x = t->x;
    __m512 sum[WMRT_TILE_BATCH];
    __m128i top = _mm_setzero_si128();
    WMRT_UNROLL for (int b = 0; b < batch; b++) sum[b] = _mm512_setzero_ps();
    for (; at < end; at += bytes, x += sizeof(wmrt_a8_unit)) {
        wmrt_fetch(at + WMRT_AHEAD);
        unit u = decoded(format, at, 0);
        top = wmrt_top(format, top, at + 128);
        WMRT_UNROLL for (int b = 0; b < batch; b++) {
            const wmrt_a8_unit *xb = (const wmrt_a8_unit *)(x + t->pitch * (size_t)b);
            __m512 scaled = _mm512_mul_ps(dots(format, &u, xb), u.scale);
            sum[b] = _mm512_fmadd_ps(scaled, _mm512_load_ps(xb->scale), sum[b]);
        }
    }
    if (wmrt_is_odd(format, top)) {
        odd_a8(t, format, batch);
        return;
    }
    WMRT_UNROLL for (int b = 0; b < batch; b++)
        wmrt_put(t, b, wmrt_total(sum[b]) * factor(format));
}

WMRT_TILES_8(wmrt_avx512_nvfp4_a8, packed_a8, WMRT_NVFP4)
WMRT_TILES_8(wmrt_avx512_mxfp4_a8, packed_a8, WMRT_MXFP4)
WMRT_TILES_8(wmrt_avx512_int4_a8, packed_a8, WMRT_INT4_G128)

/* 64-bit words are added, as the portable kernel does. */
static double stream(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    size_t whole = bytes / 256 * 256;
    __m512i sum[4];
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_setzero_si512();
    for (size_t i = 0; i < whole; i += 256)
        WMRT_UNROLL for (int j = 0; j < 4; j++) {
            _mm_prefetch((const char *)at + i + 64 * j + WMRT_AHEAD, _MM_HINT_T0);
            sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(at + i + 64 * j));
        }
    uint64_t tail[32] = {0}, words[8];
    __builtin_memcpy(tail, at + whole, bytes - whole);
    sum[0] = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
    _mm512_storeu_si512(words, sum[0]);
    for (int j = 1; j < 8; j++)
        words[0] += words[j];
    for (int j = 0; j < 32; j++)
        words[0] += tail[j];
    return (double)words[0];
}

const wmrt_kernels wmrt_kernels_avx512 = {
    .name = "avx512-vnni",
    .prepare = wmrt_avx512_prepare,
    .rows =
        {
            [WMRT_F32] = {[WMRT_A_F32] = wmrt_avx512_f32},
            [WMRT_BF16] = {[WMRT_A_F32] = wmrt_avx512_bf16, [WMRT_A_BF16] = wmrt_avx512_bf16},
            [WMRT_NVFP4] = {[WMRT_A_BF16] = wmrt_avx512_nvfp4_a16,
                            [WMRT_A_INT8_G32] = wmrt_avx512_nvfp4_a8},
            [WMRT_MXFP4] = {[WMRT_A_BF16] = wmrt_avx512_mxfp4_a16,
                            [WMRT_A_INT8_G32] = wmrt_avx512_mxfp4_a8},
            [WMRT_INT4_G128] = {[WMRT_A_INT8_G32] = wmrt_avx512_int4_a8},
        },
    .stream = stream,
};

#if defined(__clang__) && !defined(WMRT_AVX512_HEADER)
#pragma clang attribute pop
#endif
#endif
