/* Activations as the kernels take them, in plain C. See wmrt/quant/activations.py. */
#include <string.h>

#include "rows.h"

#define GROUP 32 /* activations that share a scale */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To bfloat16, half to even, and widened again. */
static float rounded(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return float_of(0x7fc00000);
    return float_of((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

/* Codes of a group, and its scale: the largest magnitude / 127. Magnitudes are compared as
 * integers, where NaN is the largest, so that it is not lost. */
static float quantized(const float *x, int8_t *code)
{
    uint32_t largest = 0;
    for (int i = 0; i < GROUP; i++) {
        uint32_t size = bits_of(x[i]) & 0x7fffffff;
        largest = size > largest ? size : largest;
    }
    float scale = float_of(largest) / 127.0f;
    for (int i = 0; i < GROUP; i++) {
        float q = x[i] / scale;
        q = q == q ? q : 0.0f; /* 0 / 0, or a scale that is not finite */
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        code[i] = (int8_t)(q + 12582912.0f - 12582912.0f); /* 1.5 x 2^23: rounds half to even */
    }
    return scale;
}

static void unit_a8(const float *x, int shift, wmrt_a8_unit *to)
{
    int8_t code[WMRT_UNIT];
    for (int g = 0; g < WMRT_UNIT / GROUP; g++)
        to->scale[2 * g] = to->scale[2 * g + 1] = quantized(x + g * GROUP, code + g * GROUP);
    for (int l = 0; l < 16; l++) {
        int sum = 0;
        for (int i = 0; i < 16; i++)
            sum += code[16 * l + i];
        to->offset[l] = shift * sum;
        for (int four = 0; four < 4; four++) /* 2 h + p */
            memcpy(to->code + 64 * four + 4 * l, code + 16 * l + 4 * four, 4);
    }
}

static void unit_a16(const float *x, wmrt_a16_unit *to)
{
    for (int l = 0; l < 16; l++)
        for (int i = 0; i < 16; i++)
            to->value[64 * (i / 4) + 4 * l + i % 4] = rounded(x[16 * l + i]);
}

static void unit_plain(const float *x, int activation, float *to)
{
    for (int i = 0; i < WMRT_UNIT; i++)
        to[i] = activation == WMRT_A_BF16 ? rounded(x[i]) : x[i];
}

void wmrt_portable_prepare(int format, int activation, const float *x, int k, int begin, int end,
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
