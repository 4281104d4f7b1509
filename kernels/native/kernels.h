/* What the parts of the native library share: matrices, prepared activations, kernels per
 * instruction set, threads. The C ABI that Python calls is in wmrt.h.
 */
#ifndef WMRT_KERNELS_H
#define WMRT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "wmrt.h"

#define WMRT_HIDDEN __attribute__((visibility("hidden")))
#define WMRT_UNIT 256 /* weights of a row that are stored, and multiplied, together */

/* 256 activations as int8, in the order of a `cpu_interleaved` unit: code 128 h + 64 p + 4 l + i
 * multiplies nibble p of byte 64 h + 4 l + i, which is element 16 l + 8 h + 4 p + i.
 * scale[l] is that of the group of 32 which block l (16 elements) lies in. offset[l] is the sum of
 * the block's codes times what the decoded codes are shifted by to be unsigned: 12 for E2M1 (held
 * as 2 x E2M1 + 12), 8 for INT4. A group that is not finite: scale not finite, codes 0.
 * Only an instruction set's own kernels read what its wmrt_prepare writes: where another form
 * serves them better, their header says so.
 */
typedef struct {
    int8_t code[WMRT_UNIT];
    float scale[16];
    int32_t offset[16];
} wmrt_a8_unit;

/* 256 activations rounded to bfloat16 and widened again, in the same order. */
typedef struct {
    float value[WMRT_UNIT];
} wmrt_a16_unit;

/* Writes units [begin, end) of one row x[k] into `prepared`; elements from k on count as 0. For
 * F32 and BF16 matrices `prepared` is float[k rounded up to WMRT_UNIT], in plain order, rounded to
 * bfloat16 if the activation is WMRT_A_BF16. Threads may write different units of one row.
 */
typedef void wmrt_prepare(int format, int activation, const float *x, int k, int begin, int end,
                          void *prepared);

/* y[b * ldy + n] for rows n in [begin, end) and b < batch (1 to 16). Row b of the activations is at
 * prepared + b * wmrt_prepared_bytes(format, activation, k). One row's sum is formed in an order
 * that depends on nothing but k: same bits for every split of the rows, and every batch.
 */
typedef void wmrt_rows(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end,
                       float *y, int64_t ldy);

/* The kernels of one instruction set. Entries that it has no faster form of are portable ones. */
typedef struct {
    const char *name;
    wmrt_prepare *prepare;
    wmrt_rows *rows[WMRT_FORMATS][WMRT_ACTIVATIONS]; /* NULL: no such pair */
    double (*stream)(const void *data, size_t bytes); /* reads all of it, prefetched; a checksum */
} wmrt_kernels;

WMRT_HIDDEN extern const wmrt_kernels wmrt_kernels_portable;
#if defined(__x86_64__)
WMRT_HIDDEN extern const wmrt_kernels wmrt_kernels_avx2;
WMRT_HIDDEN extern const wmrt_kernels wmrt_kernels_avx512;
#elif defined(__aarch64__)
WMRT_HIDDEN extern const wmrt_kernels wmrt_kernels_neon;
#endif

/* Kernels of an instruction set that this processor has, else NULL. */
WMRT_HIDDEN const wmrt_kernels *wmrt_kernels_of(int isa);

/* -- threads (pool.c) ------------------------------------------------------------------------- */

/* One call of a function by every thread of a pool; `barrier` inside it is for all of them. */
typedef void wmrt_task(void *argument, int thread, int threads, wmrt_pool *pool);
WMRT_HIDDEN void wmrt_pool_run(wmrt_pool *pool, wmrt_task *task, void *argument);
WMRT_HIDDEN void wmrt_pool_barrier(wmrt_pool *pool, int thread);

/* Part `thread` of [0, count) cut into `threads` parts whose bounds are multiples of `grain`. */
typedef struct {
    int begin, end;
} wmrt_range;

static inline wmrt_range wmrt_share(int count, int grain, int thread, int threads)
{
    int64_t pieces = (count + grain - 1) / grain;
    int64_t begin = pieces * thread / threads * grain;
    int64_t end = pieces * (thread + 1) / threads * grain;
    return (wmrt_range){(int)(begin < count ? begin : count), (int)(end < count ? end : count)};
}

#endif
