/* Rows of packed weights in plain C. Every instruction set's integer sums equal these. */
#include <string.h>

#include "rows.h"

#define BLOCKS 16 /* of 16 weights, in a unit */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Twice an E2M1 number: 0 1 2 3 4 6 8 12 and their negatives. Written so that it vectorises. */
static int8_t twice_e2m1(uint8_t code)
{
    int8_t m = code & 7, over4 = m > 4 ? m - 4 : 0, over6 = m > 6 ? 2 : 0;
    int8_t size = (int8_t)(m + over4 + over6);
    return code & 8 ? (int8_t)-size : size;
}

static void decode(int format, const uint8_t *unit, int8_t *w)
{
    for (int h = 0; h < 2; h++, unit += 64, w += 128)
        if (format == WMRT_INT4_G128)
            for (int j = 0; j < 64; j++) {
                w[j] = (int8_t)((unit[j] & 15) - 8);
                w[64 + j] = (int8_t)((unit[j] >> 4) - 8);
            }
        else
            for (int j = 0; j < 64; j++) {
                w[j] = twice_e2m1(unit[j] & 15);
                w[64 + j] = twice_e2m1(unit[j] >> 4);
            }
}

/* The factors 2^120 and 2^112 move the exponent's bias, for subnormal numbers too; exact. */
static float e4m3(uint8_t code)
{
    uint32_t size = code & 0x7f;
    float value = size == 0x7f ? float_of(0x7fc00000) : float_of(size << 20) * 0x1p120f;
    return code & 0x80 ? -value : value;
}

static float e8m0(uint8_t code)
{
    uint32_t bits = code ? (uint32_t)code << 23 : 0x400000; /* 2^-127 is subnormal */
    return float_of(code == 0xff ? 0x7fc00000 : bits);
}

static float fp16(const uint8_t *at)
{
    uint16_t code;
    memcpy(&code, at, sizeof code);
    uint32_t size = code & 0x7fff;
    float value = float_of(size << 13) * 0x1p112f;
    if (size >= 0x7c00)
        value = float_of(size << 13 | 0x7f800000);
    return code & 0x8000 ? -value : value;
}

/* Scales of the unit's blocks of 16. */
static void scales(int format, const uint8_t *at, float *scale)
{
    for (int l = 0; l < BLOCKS; l++)
        scale[l] = format == WMRT_NVFP4   ? e4m3(at[l])
                   : format == WMRT_MXFP4 ? e8m0(at[l / 2])
                                          : fp16(at + 2 * (l / 8));
}

/* One unit times 256 int8: exact over each dot product of 16 or 32, which has one of both scales.
 */
static void multiply_a8(int format, const int8_t *w, const float *scale, const wmrt_a8_unit *x,
                        float *sum)
{
    int16_t quad[64]; /* four products of at most 12 x 127 each */
    for (int j = 0; j < 64; j++)
        quad[j] = (int16_t)(w[j] * x->code[j] + w[64 + j] * x->code[64 + j] +
                            w[128 + j] * x->code[128 + j] + w[192 + j] * x->code[192 + j]);
    int32_t dot[BLOCKS];
    for (int l = 0; l < BLOCKS; l++)
        dot[l] = quad[4 * l] + quad[4 * l + 1] + quad[4 * l + 2] + quad[4 * l + 3];
    float unit = format == WMRT_INT4_G128 ? 1.0f : 0.5f;
    if (format == WMRT_NVFP4)
        for (int l = 0; l < BLOCKS; l++)
            sum[l] += unit * (float)dot[l] * scale[l] * x->scale[l];
    else
        for (int l = 0; l < BLOCKS; l += 2)
            sum[l / 2] += unit * (float)(dot[l] + dot[l + 1]) * scale[l] * x->scale[l];
}

static float folded(float *lane, int count)
{
    for (int half = count / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

void wmrt_portable_a8(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                      float *y, int64_t ldy)
{
    const wmrt_a8_unit *x = prepared;
    int units = wmrt_units(m->k), bytes = wmrt_unit_bytes(m->format);
    for (int n = begin; n < end; n++) {
        const uint8_t *at = m->rows + n * m->stride;
        float sum[WMRT_BATCH][BLOCKS] = {{0}}, scale[BLOCKS];
        int8_t w[WMRT_UNIT];
        for (int u = 0; u < units; u++, at += bytes) {
            decode(m->format, at, w);
            scales(m->format, at + 128, scale);
            for (int b = 0; b < batch; b++)
                multiply_a8(m->format, w, scale, x + (int64_t)b * units + u, sum[b]);
        }
        for (int b = 0; b < batch; b++)
            y[b * ldy + n] = wmrt_scaled(m, n, folded(sum[b], BLOCKS));
    }
}

void wmrt_portable_a16(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                       float *y, int64_t ldy)
{
    const wmrt_a16_unit *x = prepared;
    int units = wmrt_units(m->k), bytes = wmrt_unit_bytes(m->format);
    for (int n = begin; n < end; n++) {
        const uint8_t *at = m->rows + n * m->stride;
        float sum[WMRT_BATCH][BLOCKS] = {{0}}, scale[BLOCKS], value[WMRT_UNIT];
        int8_t w[WMRT_UNIT];
        for (int u = 0; u < units; u++, at += bytes) {
            decode(m->format, at, w);
            scales(m->format, at + 128, scale);
            for (int j = 0; j < WMRT_UNIT; j++)
                value[j] = 0.5f * (float)w[j] * scale[j % 64 / 4];
            for (int b = 0; b < batch; b++)
                for (int j = 0; j < WMRT_UNIT; j++)
                    sum[b][j % BLOCKS] += value[j] * x[(int64_t)b * units + u].value[j];
        }
        for (int b = 0; b < batch; b++)
            y[b * ldy + n] = wmrt_scaled(m, n, folded(sum[b], BLOCKS));
    }
}
