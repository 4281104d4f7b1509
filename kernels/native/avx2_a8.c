/* Packed rows times int8 activations, with AVX2. The dot products are exact integers.
 *
 * What bounds it, nvfp4, batch 1, weights in the first cache: 50 vector instructions in 256 weights
 * (144 bytes), 12.5 cycles of Zen 3's four pipes. Shuffles and shifts (16) compete for two of them
 * with multiplications (14) and the rest: 16.9 cycles in a bare loop, 18.4 here with the end of the
 * row, 25 GB/s a core at 3.24 GHz. Loading activations once for 2 or 4 rows does not change that.
 * A batch of 2, 4, 8 takes 34, 55, 109 cycles. Each further row of x costs 24 vector instructions
 * for 256 weights, 10 of them integer multiplications for which two pipes of four will do: 6 cycles
 * if they were spread at will, 10.7 in a bare loop with all of it in the first cache. Halving the
 * loads (two rows of weights at once), taking halves in turn for the cache's banks, and moving the
 * conversion to the next turn of the loop changed that by no more than 1 cycle, either way.
 */
#if defined(__x86_64__)
#include <string.h>

#include "avx2.h"

/* Half a unit: blocks 0 to 7 or 8 to 15, as unsigned bytes, for the four parts of the activations
 * that they multiply. */
typedef struct {
    __m256i part[4];
} half;

INLINE half decode(int format, const uint8_t *unit, int s)
{
    const __m256i table = avx2_twice_e2m1_plus_12();
    half to;
    for (int h = 0; h < 2; h++) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)(unit + 64 * h + 32 * s));
        __m256i low = avx2_low(bytes), high = avx2_high(bytes);
        int shifted = format == WMRT_INT4_G128; /* stored as q + 8: unsigned already */
        to.part[2 * h] = shifted ? low : _mm256_shuffle_epi8(table, low);
        to.part[2 * h + 1] = shifted ? high : _mm256_shuffle_epi8(table, high);
    }
    return to;
}

INLINE __m256i product(half w, const wmrt_a8_unit *x, int s, int part)
{
    const __m256i *code = (const __m256i *)(x->code + 64 * part + 32 * s);
    return _mm256_maddubs_epi16(w.part[part], _mm256_load_si256(code));
}

/* Dot products of eight blocks of 16, with the offset still in them. In 16 bits: pairs of products
 * are at most 2 x 24 x 127 = 6096, and four of those 24384. */
INLINE __m256i dots(half w, const wmrt_a8_unit *x, int s)
{
    __m256i a = _mm256_add_epi16(product(w, x, s, 0), product(w, x, s, 1));
    __m256i b = _mm256_add_epi16(product(w, x, s, 2), product(w, x, s, 3));
    return _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
}

/* A float whose last bit counts 2^103 for nvfp4, 1/2 for mxfp4 and 1 for int4: an integer added to
 * its bits is that many of them, and what is left when it is subtracted again. So the conversion
 * brings what the scales below lack, and halves the doubled weights, for nothing. */
INLINE __m256 magic(int format)
{
    return _mm256_set1_ps(format == WMRT_NVFP4   ? 0x1.8p126f
                          : format == WMRT_MXFP4 ? 0x1.8p22f
                                                 : 0x1.8p23f);
}

INLINE __m256 add(int format, __m256i dot, __m256i offset, __m256 scale, __m256 x, __m256 sum)
{
    __m256i biased = _mm256_sub_epi32(_mm256_castps_si256(magic(format)), offset);
    __m256 exact = _mm256_castsi256_ps(_mm256_add_epi32(dot, biased));
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_sub_ps(exact, magic(format)), scale), x, sum);
}

/* Eight E4M3 scales, each 2^-120 of what it should be: its bits at their places in a float. A
 * subnormal one is a subnormal float, which costs 20 cycles; they are rare (below 2^-14 of the
 * largest scale), and converting by way of float16 costs all others 4 of 50 instructions. */
INLINE __m256 e4m3(const uint8_t *at, int s)
{
#define AT(i) (int)((8u * s + i) << 24 | 0x808080)
    __m256i to = _mm256_setr_epi32(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7));
#undef AT
    __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_srli_epi32(_mm256_shuffle_epi8(bytes, to), 4));
}

/* Scales of the groups of 32 weights of mxfp4 and int4, in the order that `paired` leaves. */
INLINE __m256 group_scales(int format, const uint8_t *at)
{
    if (format == WMRT_MXFP4) {
#define AT(i) (int)(i##u << 24 | 0x808080)
        __m256i to = _mm256_setr_epi32(AT(0), AT(1), AT(4), AT(5), AT(2), AT(3), AT(6), AT(7));
#undef AT
        __m256i bytes = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)at));
        __m256i bits = _mm256_srli_epi32(_mm256_shuffle_epi8(bytes, to), 1);
        return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x400000)));
    }
    int32_t two; /* of groups of 128 */
    memcpy(&two, at, sizeof two);
    __m128i all = _mm_set1_epi32(two);
    return _mm256_cvtph_ps(_mm_unpacklo_epi16(all, all));
}

/* Sums over groups of 32, numbers 0 1 4 5 2 3 6 7, of what belongs to blocks 0 to 7 and 8 to 15. */
INLINE __m256i paired(__m256i low, __m256i high)
{
    return _mm256_hadd_epi32(low, high);
}

/* The first of every two, in that order. */
INLINE __m256 every_second(__m256 low, __m256 high)
{
    return _mm256_shuffle_ps(low, high, 0x88);
}

INLINE __m256i offset(const wmrt_a8_unit *x, int s)
{
    return _mm256_load_si256((const __m256i *)(x->offset + 8 * s));
}

INLINE __m256 scale(const wmrt_a8_unit *x, int s)
{
    return _mm256_load_ps(x->scale + 8 * s);
}

/* The sum of a row: of both halves' blocks for nvfp4, else `low` alone, of groups. */
INLINE float whole(int format, __m256 low, __m256 high)
{
    if (format != WMRT_NVFP4)
        return avx2_sum(low);
    return avx2_sum(_mm256_add_ps(low, high)) * 0x1p16f; /* 2^(120 - 103 - 1) */
}

/* One unit of a row, decoded once, times those of `batch` rows of x, each `units` further on.
 * Blocks that share both scales are summed as integers. */
INLINE void unit(int format, const uint8_t *at, const wmrt_a8_unit *x, int units, int batch,
                 __m256 (*sum)[2])
{
    half w[2] = {decode(format, at, 0), decode(format, at, 1)};
    const uint8_t *scales = at + WMRT_UNIT / 2;
    __m256 own[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    if (format == WMRT_NVFP4)
        for (int s = 0; s < 2; s++)
            own[s] = e4m3(scales, s);
    else
        own[0] = group_scales(format, scales);
    for (int b = 0; b < batch; b++, x += units) {
        __m256i dot[2] = {dots(w[0], x, 0), dots(w[1], x, 1)};
        if (format == WMRT_NVFP4)
            for (int s = 0; s < 2; s++)
                sum[b][s] = add(format, dot[s], offset(x, s), own[s], scale(x, s), sum[b][s]);
        else
            sum[b][0] = add(format, paired(dot[0], dot[1]), paired(offset(x, 0), offset(x, 1)),
                            own[0], every_second(scale(x, 0), scale(x, 1)), sum[b][0]);
    }
}

/* Row n times `batch` rows of x. One row at a time, though activations are loaded anew for each:
 * front to back is how memory is read best. Reading 2 rows side by side came to 73% of that speed
 * at K = 2048 and to as much at K = 5632, 4 rows to 69% and 81%. */
INLINE void row(int format, const wmrt_matrix *m, const wmrt_a8_unit *x, int batch, int n, float *y,
                int64_t ldy)
{
    int units = wmrt_units(m->k), bytes = wmrt_unit_bytes(format);
    const uint8_t *at = m->rows + n * m->stride;
    __m256 sum[WMRT_BATCH][2];
    __m128i top = _mm_setzero_si128();
    for (int b = 0; b < batch; b++)
        sum[b][0] = sum[b][1] = _mm256_setzero_ps();
    for (int u = 0; u < units; u++, at += bytes) {
        avx2_prefetch(format, at);
        unit(format, at, x + u, units, batch, sum);
        top = avx2_top(format, top, at + WMRT_UNIT / 2);
    }
    for (int b = 0; b < batch; b++)
        y[b * ldy + n] = wmrt_scaled(m, n, whole(format, sum[b][0], sum[b][1]));
    if (avx2_is_odd(format, top))
        wmrt_portable_a8(m, x, batch, n, n + 1, y, ldy);
}

INLINE void every(int format, const wmrt_matrix *m, const wmrt_a8_unit *x, int batch, int begin,
                  int end, float *y, int64_t ldy)
{
    if (batch == 1) /* sums stay in registers */
        for (int n = begin; n < end; n++)
            row(format, m, x, 1, n, y, ldy);
    else
        for (int n = begin; n < end; n++)
            row(format, m, x, batch, n, y, ldy);
}

void wmrt_avx2_nvfp4_a8(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                        float *y, int64_t ldy)
{
    every(WMRT_NVFP4, m, prepared, batch, begin, end, y, ldy);
}

void wmrt_avx2_mxfp4_a8(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                        float *y, int64_t ldy)
{
    every(WMRT_MXFP4, m, prepared, batch, begin, end, y, ldy);
}

void wmrt_avx2_int4_a8(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                       float *y, int64_t ldy)
{
    every(WMRT_INT4_G128, m, prepared, batch, begin, end, y, ldy);
}

AVX2_END
#endif
