/* The kernels for AVX2 with FMA and F16C, and what they have in common. */
#if defined(__x86_64__)
#include "avx2.h"

static double stream(const void *data, size_t bytes)
{
    const char *at = data;
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    size_t i = 0;
    for (; i + 128 <= bytes; i += 128) {
        _mm_prefetch(at + i + AHEAD, _MM_HINT_T0);
        _mm_prefetch(at + i + AHEAD + 64, _MM_HINT_T0);
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_add_epi64(sum[j],
                                      _mm256_loadu_si256((const __m256i *)(at + i + 32 * j)));
    }
    __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]),
                                   _mm256_add_epi64(sum[2], sum[3]));
    double tail = wmrt_kernels_portable.stream(at + i, bytes - i);
    return tail + (double)_mm256_extract_epi64(all, 0) + (double)_mm256_extract_epi64(all, 1) +
           (double)_mm256_extract_epi64(all, 2) + (double)_mm256_extract_epi64(all, 3);
}

const wmrt_kernels wmrt_kernels_avx2 = {
    .name = "avx2",
    .prepare = wmrt_avx2_prepare,
    .rows =
        {
            [WMRT_F32] = {[WMRT_A_F32] = wmrt_avx2_f32},
            [WMRT_BF16] = {[WMRT_A_F32] = wmrt_avx2_bf16, [WMRT_A_BF16] = wmrt_avx2_bf16},
            [WMRT_NVFP4] = {[WMRT_A_BF16] = wmrt_avx2_nvfp4_a16,
                            [WMRT_A_INT8_G32] = wmrt_avx2_nvfp4_a8},
            [WMRT_MXFP4] = {[WMRT_A_BF16] = wmrt_avx2_mxfp4_a16,
                            [WMRT_A_INT8_G32] = wmrt_avx2_mxfp4_a8},
            [WMRT_INT4_G128] = {[WMRT_A_INT8_G32] = wmrt_avx2_int4_a8},
        },
    .stream = stream,
};

AVX2_END
#endif
