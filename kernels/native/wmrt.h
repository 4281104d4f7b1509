/* C ABI of wmrt's native CPU kernels. Python calls it with ctypes; see library.py.
 *
 * Functions that can fail return 0 or a negative WMRT_E_*; none prints, exits or calls back.
 */
#ifndef WMRT_H
#define WMRT_H

#include <stddef.h>
#include <stdint.h>

#define WMRT_ABI 2
#define WMRT_API __attribute__((visibility("default")))

enum { WMRT_ISA_PORTABLE, WMRT_ISA_AVX2, WMRT_ISA_AVX512_VNNI, WMRT_ISA_NEON_DOTPROD, WMRT_ISAS };

/* Weights. F32 and BF16 are plain rows; the others are rows in the layout `cpu_interleaved`. */
enum { WMRT_F32, WMRT_BF16, WMRT_NVFP4, WMRT_MXFP4, WMRT_INT4_G128, WMRT_FORMATS };

/* Activations: as they are, rounded to bfloat16, int8 with one scale per 32 along K. */
enum { WMRT_A_F32, WMRT_A_BF16, WMRT_A_INT8_G32, WMRT_ACTIVATIONS };

enum { WMRT_E_ARGUMENT = -1, WMRT_E_ISA = -2, WMRT_E_FORMAT = -3, WMRT_E_MEMORY = -4,
       WMRT_E_THREAD = -5 };

/* y[n] = global_scale * sum_k w[n, k] x[k] + bias[n] */
typedef struct {
    const uint8_t *rows; /* n rows, `stride` bytes apart; any alignment that the element allows */
    const float *bias;   /* float[n], or NULL */
    int64_t stride;
    int32_t n, k;
    int32_t format, activation;
    float global_scale;
} wmrt_matrix;

typedef struct wmrt_pool wmrt_pool;

WMRT_API int wmrt_abi(void);

/* The best instruction set of this processor; whether one is usable here; its name, as
 * "avx2", or NULL for a number that is none. */
WMRT_API int wmrt_isa_best(void);
WMRT_API int wmrt_isa_usable(int isa);
WMRT_API const char *wmrt_isa_name(int isa);

/* Bytes of one prepared row of activations, a multiple of 64. */
WMRT_API size_t wmrt_prepared_bytes(int format, int activation, int k);

/* Threads that live until destroyed: the caller is number 0, the others are pinned to cpus[1..]
 * (cpus may be NULL: not pinned). Between calls they spin for `spin_ns`, then block. NULL: failed.
 */
WMRT_API wmrt_pool *wmrt_pool_create(int threads, const int *cpus, int64_t spin_ns);
WMRT_API void wmrt_pool_destroy(wmrt_pool *pool);
WMRT_API int wmrt_pool_threads(const wmrt_pool *pool);

/* y[batch, n] = x[batch, k] times the matrix; `work` holds batch * wmrt_prepared_bytes, 64-byte
 * aligned. pool may be NULL: the caller alone. */
WMRT_API int wmrt_linear(int isa, wmrt_pool *pool, const wmrt_matrix *matrix, const float *x,
                         int batch, void *work, float *y);

/* Reads `bytes` from `data` with all threads of the pool, prefetched: the floor of a step that
 * reads as many bytes. Returns nanoseconds, or a negative error. */
WMRT_API int64_t wmrt_stream(int isa, wmrt_pool *pool, const void *data, size_t bytes);

/* Waits until one of two descriptors (-1: none) can be read, or a signal comes: spins for
 * `spin_ns`, then sleeps. 1 for the first one, 2 for the second, 3 for both, 0 for neither. */
WMRT_API int wmrt_wait(int first, int second, int64_t spin_ns);

#endif
