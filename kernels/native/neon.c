/* Rows of packed weights times int8 activations with NEON's dot products, and the table of the set.
 */
#include "tiles.h"

#if defined(__aarch64__)
#include "neon.h"

/* The 64 codes of blocks 4 part to 4 part + 3, in the order of wmrt_a8_unit: 2 x E2M1, or INT4 as
 * stored, which is q + 8. */
WMRT_INLINE void decoded(int format, const uint8_t *unit, int part, int8x16_t code[4])
{
    static const int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t levels = vld1q_s8(e2m1);
    WMRT_UNROLL for (int h = 0; h < 2; h++) {
        uint8x16_t bytes = vld1q_u8(unit + 64 * h + 16 * part);
        uint8x16_t first = vandq_u8(bytes, vdupq_n_u8(15)), second = vshrq_n_u8(bytes, 4);
        int whole = format == WMRT_INT4_G128;
        code[2 * h] = whole ? vreinterpretq_s8_u8(first) : vqtbl1q_s8(levels, first);
        code[2 * h + 1] = whole ? vreinterpretq_s8_u8(second) : vqtbl1q_s8(levels, second);
    }
}

/* Dot products of those four blocks, which start by taking back what INT4 is shifted by. Exact. */
WMRT_INLINE int32x4_t dots(int format, const int8x16_t code[4], const wmrt_a8_unit *x, int part)
{
    int32x4_t dot = vdupq_n_s32(0);
    if (format == WMRT_INT4_G128)
        dot = vnegq_s32(vld1q_s32(x->offset + 4 * part));
    WMRT_UNROLL for (int i = 0; i < 4; i++)
        dot = vdotq_s32(dot, code[i], vld1q_s8(x->code + 64 * i + 16 * part));
    return dot;
}

/* NVFP4: a sum is formed in four lanes, block l going to lane l % 4. */
WMRT_INLINE void blocks_of_16(const wmrt_tile *t, int format, int batch)
{
    const uint8_t *at = t->row, *end = at + 144 * (int64_t)wmrt_units(t->matrix->k), *x = t->x;
    float32x4_t sum[WMRT_TILE_BATCH], scale[4];
    WMRT_UNROLL for (int b = 0; b < batch; b++) sum[b] = vdupq_n_f32(0);
    for (; at < end; at += 144, x += sizeof(wmrt_a8_unit)) {
        wmrt_fetch(at + WMRT_AHEAD);
        wmrt_e4m3(at + 128, scale);
        WMRT_UNROLL for (int part = 0; part < 4; part++) {
            int8x16_t code[4];
            decoded(format, at, part, code);
            WMRT_UNROLL for (int b = 0; b < batch; b++) {
                const wmrt_a8_unit *xb = (const wmrt_a8_unit *)(x + t->pitch * (size_t)b);
                float32x4_t dot = vcvtq_f32_s32(dots(format, code, xb, part));
                dot = vmulq_f32(dot, scale[part]);
                sum[b] = vfmaq_f32(sum[b], dot, vld1q_f32(xb->scale + 4 * part));
            }
        }
    }
    /* 2^8 of the scales, 1/2 of 2 x E2M1 */
    WMRT_UNROLL for (int b = 0; b < batch; b++) wmrt_put(t, b, vaddvq_f32(sum[b]) * 128.0f);
}

/* Scales of groups 4 half to 4 half + 3 of 32 weights. */
WMRT_INLINE float32x4_t half_scales(int format, const uint8_t *at, int half)
{
    if (format == WMRT_MXFP4) {
        float32x4_t scale[2];
        wmrt_e8m0(at, scale);
        return scale[half];
    }
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16((const uint16_t *)at + half)));
}

/* The others: both scales hold for 32, so blocks are added in pairs; group g goes to lane g % 4. */
WMRT_INLINE void blocks_of_32(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k), *x = t->x;
    float32x4_t sum[WMRT_TILE_BATCH];
    WMRT_UNROLL for (int b = 0; b < batch; b++) sum[b] = vdupq_n_f32(0);
    for (; at < end; at += bytes, x += sizeof(wmrt_a8_unit)) {
        wmrt_fetch(at + WMRT_AHEAD);
        WMRT_UNROLL for (int half = 0; half < 2; half++) {
            int8x16_t code[8];
            decoded(format, at, 2 * half, code);
            decoded(format, at, 2 * half + 1, code + 4);
            float32x4_t scale = half_scales(format, at + 128, half);
            WMRT_UNROLL for (int b = 0; b < batch; b++) {
                const wmrt_a8_unit *xb = (const wmrt_a8_unit *)(x + t->pitch * (size_t)b);
                int32x4_t dot = vpaddq_s32(dots(format, code, xb, 2 * half),
                                           dots(format, code + 4, xb, 2 * half + 1));
                float32x4_t group = vuzp1q_f32(vld1q_f32(xb->scale + 8 * half),
                                               vld1q_f32(xb->scale + 8 * half + 4));
                sum[b] = vfmaq_f32(sum[b], vmulq_f32(vcvtq_f32_s32(dot), scale), group);
            }
        }
    }
    float factor = format == WMRT_MXFP4 ? 0.5f : 1.0f; /* of 2 x E2M1 */
    WMRT_UNROLL for (int b = 0; b < batch; b++) wmrt_put(t, b, vaddvq_f32(sum[b]) * factor);
}

WMRT_TILES_8(wmrt_neon_nvfp4_a8, blocks_of_16, WMRT_NVFP4)
WMRT_TILES_8(wmrt_neon_mxfp4_a8, blocks_of_32, WMRT_MXFP4)
WMRT_TILES_8(wmrt_neon_int4_a8, blocks_of_32, WMRT_INT4_G128)

/* 64-bit words are added, as the portable kernel does. */
static double stream(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    size_t whole = bytes / 64 * 64;
    uint64x2_t sum[4];
    for (int j = 0; j < 4; j++)
        sum[j] = vdupq_n_u64(0);
    for (size_t i = 0; i < whole; i += 64) {
        __builtin_prefetch(at + i + WMRT_AHEAD);
        WMRT_UNROLL for (int j = 0; j < 4; j++)
            sum[j] = vaddq_u64(sum[j], vreinterpretq_u64_u8(vld1q_u8(at + i + 16 * j)));
    }
    uint64_t tail[8] = {0};
    __builtin_memcpy(tail, at + whole, bytes - whole);
    uint64_t total = vaddvq_u64(vaddq_u64(vaddq_u64(sum[0], sum[1]), vaddq_u64(sum[2], sum[3])));
    for (int j = 0; j < 8; j++)
        total += tail[j];
    return (double)total;
}

const wmrt_kernels wmrt_kernels_neon = {
    .name = "neon-dotprod",
    .prepare = wmrt_neon_prepare,
    .rows =
        {
            [WMRT_F32] = {[WMRT_A_F32] = wmrt_neon_f32},
            [WMRT_BF16] = {[WMRT_A_F32] = wmrt_neon_bf16, [WMRT_A_BF16] = wmrt_neon_bf16},
            [WMRT_NVFP4] = {[WMRT_A_BF16] = wmrt_neon_nvfp4_a16,
                            [WMRT_A_INT8_G32] = wmrt_neon_nvfp4_a8},
            [WMRT_MXFP4] = {[WMRT_A_BF16] = wmrt_neon_mxfp4_a16,
                            [WMRT_A_INT8_G32] = wmrt_neon_mxfp4_a8},
            [WMRT_INT4_G128] = {[WMRT_A_INT8_G32] = wmrt_neon_int4_a8},
        },
    .stream = stream,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
