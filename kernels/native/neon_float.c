/* Rows times float activations with NEON: packed weights, float32 and bfloat16. */
#include "tiles.h"

#if defined(__aarch64__)
#include "neon.h"

/* Values of 16 E2M1 codes. A float16 has them in its upper byte. */
WMRT_INLINE void sixteen(uint8x16_t codes, float32x4_t value[4])
{
    static const uint8_t e2m1[16] = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                                     0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
    uint8x16_t upper = vqtbl1q_u8(vld1q_u8(e2m1), codes);
    float16x8_t low = vreinterpretq_f16_u8(vzip1q_u8(vdupq_n_u8(0), upper));
    float16x8_t high = vreinterpretq_f16_u8(vzip2q_u8(vdupq_n_u8(0), upper));
    value[0] = vcvt_f32_f16(vget_low_f16(low));
    value[1] = vcvt_high_f32_f16(low);
    value[2] = vcvt_f32_f16(vget_low_f16(high));
    value[3] = vcvt_high_f32_f16(high);
}

/* value[4 (2 h + p) + l]: four elements of block 4 part + l. */
WMRT_INLINE void values(const uint8_t *unit, int part, float32x4_t value[16])
{
    WMRT_UNROLL for (int h = 0; h < 2; h++) {
        uint8x16_t bytes = vld1q_u8(unit + 64 * h + 16 * part);
        sixteen(vandq_u8(bytes, vdupq_n_u8(15)), value + 8 * h);
        sixteen(vshrq_n_u8(bytes, 4), value + 8 * h + 4);
    }
}

/* Scales of blocks 4 part to 4 part + 3; NVFP4's times 2^-8. */
WMRT_INLINE float32x4_t part_scales(int format, const uint8_t *at, int part)
{
    float32x4_t scale[4];
    if (format == WMRT_NVFP4) {
        wmrt_e4m3(at, scale);
        return scale[part];
    }
    wmrt_e8m0(at, scale);
    return part % 2 ? vzip2q_f32(scale[part / 2], scale[part / 2])
                    : vzip1q_f32(scale[part / 2], scale[part / 2]);
}

/* Four products of each lane, of block 4 part + l. */
WMRT_INLINE float32x4_t four_products(const float32x4_t value[16], const float *x, int l)
{
    float32x4_t four = vmulq_f32(value[l], vld1q_f32(x + 4 * l));
    WMRT_UNROLL for (int j = 1; j < 4; j++)
        four = vfmaq_f32(four, value[4 * j + l], vld1q_f32(x + 64 * j + 4 * l));
    return four;
}

/* Element i of a block goes to lane i % 4 of sum l % 2, l the block: two, to wait half as long. */
WMRT_INLINE void packed_a16(const wmrt_tile *t, int format, int batch)
{
    int64_t bytes = wmrt_unit_bytes(format);
    const uint8_t *at = t->row, *end = at + bytes * wmrt_units(t->matrix->k), *x = t->x;
    float32x4_t sum[4][2], value[16];
    WMRT_UNROLL for (int i = 0; i < 2 * batch; i++) sum[i / 2][i % 2] = vdupq_n_f32(0);
    for (; at < end; at += bytes, x += sizeof(wmrt_a16_unit)) {
        wmrt_fetch(at + WMRT_AHEAD);
        WMRT_UNROLL for (int part = 0; part < 4; part++) {
            values(at, part, value);
            float32x4_t scale = part_scales(format, at + 128, part);
            WMRT_UNROLL for (int b = 0; b < batch; b++) {
                const float *xb = (const float *)(x + t->pitch * (size_t)b) + 16 * part;
                sum[b][0] = vfmaq_laneq_f32(sum[b][0], four_products(value, xb, 0), scale, 0);
                sum[b][1] = vfmaq_laneq_f32(sum[b][1], four_products(value, xb, 1), scale, 1);
                sum[b][0] = vfmaq_laneq_f32(sum[b][0], four_products(value, xb, 2), scale, 2);
                sum[b][1] = vfmaq_laneq_f32(sum[b][1], four_products(value, xb, 3), scale, 3);
            }
        }
    }
    float factor = format == WMRT_NVFP4 ? 256.0f : 1.0f;
    WMRT_UNROLL for (int b = 0; b < batch; b++)
        wmrt_put(t, b, vaddvq_f32(vaddq_f32(sum[b][0], sum[b][1])) * factor);
}

/* 8 weights from element k on, as float32. */
WMRT_INLINE void eight(int format, const uint8_t *row, int k, float32x4_t w[2])
{
    if (format == WMRT_F32) {
        const uint8_t *at = row + 4 * (int64_t)k;
        w[0] = vreinterpretq_f32_u8(vld1q_u8(at));
        w[1] = vreinterpretq_f32_u8(vld1q_u8(at + 16));
        return;
    }
    uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(row + 2 * (int64_t)k));
    w[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16));
    w[1] = vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16));
}

/* Those weights times those of each x; i is k / 8 % 2. */
WMRT_INLINE void plain_step(const wmrt_tile *t, const float32x4_t w[2], int batch, int k, int i,
                            float32x4_t sum[4][4])
{
    WMRT_UNROLL for (int b = 0; b < batch; b++) {
        const float *xb = (const float *)(t->x + t->pitch * (size_t)b) + k;
        sum[b][2 * i] = vfmaq_f32(sum[b][2 * i], w[0], vld1q_f32(xb));
        sum[b][2 * i + 1] = vfmaq_f32(sum[b][2 * i + 1], w[1], vld1q_f32(xb + 4));
    }
}

/* Element k goes to lane k % 4 of sum k / 4 % 4: four, since one would wait for itself. */
WMRT_INLINE void plain(const wmrt_tile *t, int format, int batch)
{
    int size = format == WMRT_F32 ? 4 : 2, line = 64 / size, count = t->matrix->k, k = 0;
    float32x4_t sum[4][4], w[2];
    WMRT_UNROLL for (int i = 0; i < 4 * batch; i++) sum[i / 4][i % 4] = vdupq_n_f32(0);
    for (; k + line <= count; k += line) {
        __builtin_prefetch(t->row + size * (int64_t)k + WMRT_AHEAD);
        WMRT_UNROLL for (int i = 0; i < line / 8; i++) {
            eight(format, t->row, k + 8 * i, w);
            plain_step(t, w, batch, k + 8 * i, i % 2, sum);
        }
    }
    for (int i = 0; k < count; k += 8, i ^= 1) {
        uint8_t rest[32] = {0};
        int left = count - k < 8 ? count - k : 8;
        __builtin_memcpy(rest, t->row + size * (int64_t)k, (size_t)(left * size));
        eight(format, rest, 0, w);
        if (i)
            plain_step(t, w, batch, k, 1, sum);
        else
            plain_step(t, w, batch, k, 0, sum);
    }
    WMRT_UNROLL for (int b = 0; b < batch; b++) {
        float32x4_t even = vaddq_f32(sum[b][0], sum[b][2]);
        wmrt_put(t, b, vaddvq_f32(vaddq_f32(even, vaddq_f32(sum[b][1], sum[b][3]))));
    }
}

WMRT_TILES_4(wmrt_neon_nvfp4_a16, packed_a16, WMRT_NVFP4)
WMRT_TILES_4(wmrt_neon_mxfp4_a16, packed_a16, WMRT_MXFP4)
WMRT_TILES_4(wmrt_neon_f32, plain, WMRT_F32)
WMRT_TILES_4(wmrt_neon_bf16, plain, WMRT_BF16)

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
