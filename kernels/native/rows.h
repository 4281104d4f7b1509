/* Rows of weights: sizes, what ends a sum, and the portable kernels, which the others fall back on.
 */
#ifndef WMRT_ROWS_H
#define WMRT_ROWS_H

#include "kernels.h"

#define WMRT_BATCH 16 /* rows of activations that one call of `wmrt_rows` takes at most */

static inline int wmrt_packed(int format)
{
    return format == WMRT_NVFP4 || format == WMRT_MXFP4 || format == WMRT_INT4_G128;
}

/* Units that a row of k weights is stored in. */
static inline int wmrt_units(int k)
{
    return k / WMRT_UNIT + (k % WMRT_UNIT != 0);
}

/* Bytes of 256 packed weights: 128 of codes, then 16 E4M3, 8 E8M0 or 2 float16 scales. */
static inline int wmrt_unit_bytes(int format)
{
    return format == WMRT_NVFP4 ? 144 : format == WMRT_MXFP4 ? 136 : 132;
}

/* Bytes of a row of k weights, without what may follow it up to the next. */
static inline int64_t wmrt_row_bytes(int format, int k)
{
    if (wmrt_packed(format))
        return (int64_t)wmrt_units(k) * wmrt_unit_bytes(format);
    return (int64_t)k * (format == WMRT_F32 ? 4 : 2);
}

/* What a row of a matrix gives, from its sum. */
static inline float wmrt_scaled(const wmrt_matrix *m, int n, float sum)
{
    float y = sum * m->global_scale;
    return m->bias ? y + m->bias[n] : y;
}

WMRT_HIDDEN wmrt_prepare wmrt_portable_prepare;
WMRT_HIDDEN wmrt_rows wmrt_portable_plain; /* F32 and BF16 */
WMRT_HIDDEN wmrt_rows wmrt_portable_a8;    /* packed formats, int8 activations */
WMRT_HIDDEN wmrt_rows wmrt_portable_a16;   /* packed formats, bfloat16 activations */

#endif
