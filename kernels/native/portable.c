/* Kernels in plain C, for any processor: rows of float32 and bfloat16, and reading memory. */
#include <string.h>

#include "rows.h"

#define LANES 16 /* partial sums of a row; element k goes to number k % 16 */

static float widened(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Sixteen weights of a row from element k on; those behind its end are 0. */
static void sixteen(const wmrt_matrix *m, const uint8_t *row, int k, float *w)
{
    int count = m->k - k < LANES ? m->k - k : LANES;
    if (count < LANES)
        memset(w, 0, LANES * sizeof *w);
    if (m->format == WMRT_F32) {
        memcpy(w, row + 4 * (int64_t)k, (size_t)count * 4);
        return;
    }
    uint16_t bits[LANES] = {0};
    memcpy(bits, row + 2 * (int64_t)k, (size_t)count * 2);
    for (int i = 0; i < LANES; i++)
        w[i] = widened(bits[i]);
}

static float folded(float *lane)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

void wmrt_portable_plain(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                         float *y, int64_t ldy)
{
    const float *x = prepared;
    int64_t width = (int64_t)wmrt_units(m->k) * WMRT_UNIT;
    for (int n = begin; n < end; n++) {
        const uint8_t *row = m->rows + n * m->stride;
        float sum[WMRT_BATCH][LANES] = {{0}}, w[LANES];
        for (int k = 0; k < m->k; k += LANES) {
            sixteen(m, row, k, w);
            for (int b = 0; b < batch; b++)
                for (int i = 0; i < LANES; i++)
                    sum[b][i] += w[i] * x[b * width + k + i];
        }
        for (int b = 0; b < batch; b++)
            y[b * ldy + n] = wmrt_scaled(m, n, folded(sum[b]));
    }
}

static double stream(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t sum[8] = {0}, word[8];
    for (size_t i = 0; i < bytes; i += sizeof word) {
        if (bytes - i < sizeof word)
            memset(word, 0, sizeof word);
        memcpy(word, at + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        __builtin_prefetch(at + i + 4096);
        for (int j = 0; j < 8; j++)
            sum[j] += word[j];
    }
    for (int j = 1; j < 8; j++)
        sum[0] += sum[j];
    return (double)sum[0];
}

const wmrt_kernels wmrt_kernels_portable = {
    .name = "portable",
    .prepare = wmrt_portable_prepare,
    .rows =
        {
            [WMRT_F32] = {[WMRT_A_F32] = wmrt_portable_plain},
            [WMRT_BF16] = {[WMRT_A_F32] = wmrt_portable_plain,
                           [WMRT_A_BF16] = wmrt_portable_plain},
            [WMRT_NVFP4] = {[WMRT_A_BF16] = wmrt_portable_a16,
                            [WMRT_A_INT8_G32] = wmrt_portable_a8},
            [WMRT_MXFP4] = {[WMRT_A_BF16] = wmrt_portable_a16,
                            [WMRT_A_INT8_G32] = wmrt_portable_a8},
            [WMRT_INT4_G128] = {[WMRT_A_INT8_G32] = wmrt_portable_a8},
        },
    .stream = stream,
};
