/* How fast memory can be read: the floor of a step, by the same threads and prefetches. */
#define _POSIX_C_SOURCE 199309L
#include <stdatomic.h>
#include <time.h>

#include "rows.h"

#define PAGE 4096

typedef struct {
    const wmrt_kernels *kernels;
    const char *data;
    size_t bytes;
    _Atomic double sum; /* written, so that nothing may leave the reads out */
} job;

static void work(void *argument, int thread, int threads, wmrt_pool *pool)
{
    (void)pool;
    job *j = argument;
    int pages = (int)((j->bytes + PAGE - 1) / PAGE);
    wmrt_range mine = wmrt_share(pages, 1, thread, threads);
    size_t begin = (size_t)mine.begin * PAGE, end = (size_t)mine.end * PAGE;
    end = end < j->bytes ? end : j->bytes;
    if (begin < end)
        atomic_store(&j->sum, j->kernels->stream(j->data + begin, end - begin));
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t wmrt_stream(int isa, wmrt_pool *pool, const void *data, size_t bytes)
{
    job j = {.kernels = wmrt_kernels_of(isa), .data = data, .bytes = bytes};
    if (!j.kernels)
        return WMRT_E_ISA;
    if (!data || bytes > (size_t)PAGE * INT32_MAX)
        return WMRT_E_ARGUMENT;
    int64_t start = now();
    if (pool)
        wmrt_pool_run(pool, work, &j);
    else
        work(&j, 0, 1, NULL);
    return now() - start;
}
