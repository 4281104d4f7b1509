/* Activations as the kernels take them, with NEON. Same bytes as the portable form. */
#include "tiles.h"

#if defined(__aarch64__)
#include <string.h>

#include "neon.h"

/* To bfloat16, half to even, and widened again. */
WMRT_INLINE float32x4_t rounded(float32x4_t x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    bits = vandq_u32(bits, vdupq_n_u32(0xffff0000));
    bits = vbslq_u32(vceqq_f32(x, x), bits, vdupq_n_u32(0x7fc00000));
    return vreinterpretq_f32_u32(bits);
}

/* Codes of four elements. Conversion to an integer makes NaN 0: that is 0 / 0, or of a scale that
 * is not finite. */
WMRT_INLINE int32x4_t codes(float32x4_t x, float32x4_t scale)
{
    int32x4_t code = vcvtnq_s32_f32(vdivq_f32(x, scale));
    return vmaxq_s32(vminq_s32(code, vdupq_n_s32(127)), vdupq_n_s32(-127));
}

/* The 16 codes of a block. */
WMRT_INLINE int8x16_t block(const float *x, float32x4_t scale)
{
    int16x8_t low = vcombine_s16(vmovn_s32(codes(vld1q_f32(x), scale)),
                                 vmovn_s32(codes(vld1q_f32(x + 4), scale)));
    int16x8_t high = vcombine_s16(vmovn_s32(codes(vld1q_f32(x + 8), scale)),
                                  vmovn_s32(codes(vld1q_f32(x + 12), scale)));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
}

/* A group's scale. Its largest magnitude is found among the bits, where NaN is the largest, so that
 * it is not lost. */
WMRT_INLINE float group_scale(const float *x)
{
    uint32x4_t largest = vdupq_n_u32(0);
    WMRT_UNROLL for (int i = 0; i < 32; i += 4) {
        uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i));
        largest = vmaxq_u32(largest, vandq_u32(bits, vdupq_n_u32(0x7fffffff)));
    }
    uint32_t bits = vmaxvq_u32(largest);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    return amax / 127.0f;
}

static void unit_a8(const float *x, int shift, wmrt_a8_unit *to)
{
    for (int l = 0; l < 16; l++) {
        if (l % 2 == 0)
            to->scale[l] = to->scale[l + 1] = group_scale(x + 16 * l);
        int8x16_t code = block(x + 16 * l, vdupq_n_f32(to->scale[l]));
        to->offset[l] = shift * vaddlvq_s8(code);
        int32_t word[4];
        vst1q_s32(word, vreinterpretq_s32_s8(code));
        for (int w = 0; w < 4; w++) /* 2 h + p */
            memcpy(to->code + 64 * w + 4 * l, word + w, 4);
    }
}

static void unit_a16(const float *x, wmrt_a16_unit *to)
{
    for (int l = 0; l < 16; l++)
        for (int w = 0; w < 4; w++)
            vst1q_f32(to->value + 64 * w + 4 * l, rounded(vld1q_f32(x + 16 * l + 4 * w)));
}

static void unit_plain(const float *x, int activation, float *to)
{
    for (int i = 0; i < WMRT_UNIT; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        vst1q_f32(to + i, activation == WMRT_A_BF16 ? rounded(v) : v);
    }
}

void wmrt_neon_prepare(int format, int activation, const float *x, int k, int begin, int end,
                       void *prepared)
{
    for (int u = begin; u < end; u++) {
        float tail[WMRT_UNIT] = {0};
        const float *from = x + (int64_t)u * WMRT_UNIT;
        int left = k - u * WMRT_UNIT;
        if (left < WMRT_UNIT)
            from = memcpy(tail, from, (size_t)left * sizeof *tail);
        if (!wmrt_packed(format))
            unit_plain(from, activation, (float *)prepared + (int64_t)u * WMRT_UNIT);
        else if (activation == WMRT_A_INT8_G32)
            unit_a8(from, format == WMRT_INT4_G128 ? 8 : 12, (wmrt_a8_unit *)prepared + u);
        else
            unit_a16(from, (wmrt_a16_unit *)prepared + u);
    }
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
