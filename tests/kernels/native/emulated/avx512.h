/* AVX-512 in SIMDe's emulation, for the AVX-512 kernels' own source lines on other processors.
 *
 * SIMDe 0.7.4 lacks some of what they use; that is written out here, element by element.
 */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <string.h>

static inline __m512i emulated_loaded(const void *from)
{
    __m512i v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline __m512 emulated_masked_floats(__mmask16 mask, const float *from)
{
    float to[16] = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            to[i] = from[i];
    return _mm512_castsi512_ps(emulated_loaded(to));
}
#define _mm512_maskz_loadu_ps(mask, from) emulated_masked_floats(mask, (const float *)(from))

static inline __m256i emulated_masked_shorts(__mmask16 mask, const void *from)
{
    uint16_t to[16] = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy(to + i, (const char *)from + 2 * i, 2);
    return _mm256_loadu_si256((const __m256i *)to);
}
#define _mm256_maskz_loadu_epi16(mask, from) emulated_masked_shorts(mask, from)

static inline __m512i emulated_bytes_widened(__m128i v)
{
    uint8_t from[16];
    int32_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[i];
    return emulated_loaded(to);
}
#define _mm512_cvtepu8_epi32(v) emulated_bytes_widened(v)

static inline __m512i emulated_shorts_widened(__m256i v)
{
    uint16_t from[16];
    int32_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[i];
    return emulated_loaded(to);
}
#define _mm512_cvtepu16_epi32(v) emulated_shorts_widened(v)

static inline __m128i emulated_narrowed(__m512i v)
{
    int32_t from[16];
    int8_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = (int8_t)from[i];
    return _mm_loadu_si128((const __m128i *)to);
}
#define _mm512_cvtepi32_epi8(v) emulated_narrowed(v)

static inline __m512 emulated_to_floats(__m512i v)
{
    int32_t from[16];
    float to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = (float)from[i];
    return _mm512_castsi512_ps(emulated_loaded(to));
}
#define _mm512_cvtepi32_ps(v) emulated_to_floats(v)

/* By the rounding mode, which is half to even; what is in no int32 becomes the smallest. */
static inline __m512i emulated_to_ints(__m512 v)
{
    float from[16];
    int32_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = _mm_cvtss_si32(_mm_set_ss(from[i]));
    return emulated_loaded(to);
}
#define _mm512_cvtps_epi32(v) emulated_to_ints(v)

/* Float16 to float32: the factor moves the exponent's bias, for subnormal numbers too. */
static inline __m512 emulated_halves(__m256i v)
{
    uint16_t from[16];
    float to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)(from[i] & 0x7fff) << 13;
        memcpy(to + i, &bits, 4);
        if ((from[i] & 0x7c00) == 0x7c00) /* infinity, NaN */
            bits |= 0x7f800000, memcpy(to + i, &bits, 4);
        else
            to[i] *= 0x1p112f;
        to[i] = from[i] & 0x8000 ? -to[i] : to[i];
    }
    return _mm512_castsi512_ps(emulated_loaded(to));
}
#define _mm512_cvtph_ps(v) emulated_halves(v)

static inline int emulated_largest(__m512i v)
{
    int32_t from[16];
    memcpy(from, &v, sizeof from);
    for (int i = 1; i < 16; i++)
        from[0] = from[i] > from[0] ? from[i] : from[0];
    return from[0];
}
#define _mm512_reduce_max_epi32(v) emulated_largest(v)

/* Two bits of `order` choose for each element, or each part, of a group of four. */
static inline __m512i emulated_shuffle(__m512i v, int order)
{
    int32_t from[16], to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[i / 4 * 4 + (order >> i % 4 * 2 & 3)];
    return emulated_loaded(to);
}
#define _mm512_shuffle_epi32(v, order) emulated_shuffle(v, order)

static inline __m512i emulated_parts(__m512i a, __m512i b, int order)
{
    char from[2][4][16], to[4][16];
    memcpy(from[0], &a, 64);
    memcpy(from[1], &b, 64);
    for (int i = 0; i < 4; i++)
        memcpy(to[i], from[i / 2][order >> i * 2 & 3], 16);
    return emulated_loaded(to);
}
#define _mm512_shuffle_i64x2(a, b, order) emulated_parts(a, b, order)
#define _mm512_shuffle_f32x4(a, b, order)                                                          \
    _mm512_castsi512_ps(                                                                           \
        emulated_parts(_mm512_castps_si512(a), _mm512_castps_si512(b), order))
