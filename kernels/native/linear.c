/* One linear layer: the arguments checked, the work shared between the threads of a pool. */
#include "rows.h"

/* Rows that go to one thread together: whole groups of what a kernel takes at a time. */
#define GRAIN 8

typedef struct {
    const wmrt_kernels *kernels;
    const wmrt_matrix *matrix;
    const float *x;
    void *prepared;
    float *y;
    int batch;
} job;

static void prepare(const job *j, int thread, int threads)
{
    const wmrt_matrix *m = j->matrix;
    int units = wmrt_units(m->k);
    size_t row = wmrt_prepared_bytes(m->format, m->activation, m->k);
    wmrt_range mine = wmrt_share(units * j->batch, 1, thread, threads);
    for (int at = mine.begin; at < mine.end;) {
        int b = at / units, begin = at % units;
        int end = mine.end - at < units - begin ? begin + mine.end - at : units;
        j->kernels->prepare(m->format, m->activation, j->x + (int64_t)b * m->k, m->k, begin, end,
                            (char *)j->prepared + row * (size_t)b);
        at += end - begin;
    }
}

static void work(void *argument, int thread, int threads, wmrt_pool *pool)
{
    const job *j = argument;
    const wmrt_matrix *m = j->matrix;
    prepare(j, thread, threads);
    if (pool)
        wmrt_pool_barrier(pool, thread);
    wmrt_range mine = wmrt_share(m->n, GRAIN, thread, threads);
    if (mine.begin < mine.end)
        j->kernels->rows[m->format][m->activation](m, j->prepared, j->batch, mine.begin, mine.end,
                                                   j->y, m->n);
}

static int refused(const wmrt_matrix *m, const float *x, int batch, const void *prepared,
                   const float *y)
{
    if (!m || !x || !prepared || !y || !m->rows || m->n < 1 || m->k < 1)
        return WMRT_E_ARGUMENT;
    if (batch < 1 || batch > WMRT_BATCH || (uintptr_t)prepared % 64)
        return WMRT_E_ARGUMENT;
    if (!wmrt_prepared_bytes(m->format, m->activation, m->k))
        return WMRT_E_FORMAT;
    int aligned = m->format == WMRT_F32 ? 4 : m->format == WMRT_BF16 ? 2 : 1;
    if ((uintptr_t)m->rows % (unsigned)aligned || m->stride % aligned)
        return WMRT_E_ARGUMENT;
    return m->stride < wmrt_row_bytes(m->format, m->k) ? WMRT_E_ARGUMENT : 0;
}

int wmrt_linear(int isa, wmrt_pool *pool, const wmrt_matrix *matrix, const float *x, int batch,
                void *prepared, float *y)
{
    const wmrt_kernels *kernels = wmrt_kernels_of(isa);
    if (!kernels)
        return WMRT_E_ISA;
    int error = refused(matrix, x, batch, prepared, y);
    if (error)
        return error;
    job j = {kernels, matrix, x, prepared, y, batch};
    if (pool)
        wmrt_pool_run(pool, work, &j);
    else
        work(&j, 0, 1, NULL);
    return 0;
}
