/* Runs the kernels of an instruction set on requests from a file: driver REQUESTS RESULTS. Without
 * arguments: names the instruction set that would be taken here.
 *
 * Each request is a `request`, then what its operation takes; its result is written as raw bytes.
 * Whatever a kernel reads or writes lies right before a page that may not be touched.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rows.h"

enum { MULTIPLY, PREPARE, STREAM };

typedef struct {
    int32_t operation, isa, n, k, format, activation, batch, begin, end, biased;
    float global_scale;
    int32_t none;
    int64_t stride, bytes;
} request;

static FILE *in, *out;

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "driver: %s\n", what);
    exit(2);
}

/* `bytes` that end where a page begins that may not be touched. */
static void *guarded(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page + page;
    char *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(at != MAP_FAILED, "no memory");
    require(!mprotect(at + whole - page, page, PROT_NONE), "no guard page");
    return at + whole - page - bytes;
}

static void released(void *at, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page + page;
    require(!munmap((char *)at + bytes + page - whole, whole), "munmap");
}

static void *read_guarded(size_t bytes)
{
    void *at = guarded(bytes);
    require(fread(at, 1, bytes, in) == bytes, "the requests are cut off");
    return at;
}

static void written(const void *at, size_t bytes)
{
    require(fwrite(at, 1, bytes, out) == bytes, "the results cannot be written");
}

static const wmrt_kernels *kernels_of(int isa)
{
    if (isa == WMRT_ISA_PORTABLE)
        return &wmrt_kernels_portable;
#if defined(__x86_64__)
    if (isa == WMRT_ISA_AVX512_VNNI)
        return &wmrt_kernels_avx512;
#elif defined(__aarch64__)
    if (isa == WMRT_ISA_NEON_DOTPROD)
        return &wmrt_kernels_neon;
#endif
    require(0, "no such instruction set in this build");
    return NULL;
}

/* Each row of x in two parts, the later one first. */
static void *prepared(const request *r, const float *x)
{
    size_t row = wmrt_prepared_bytes(r->format, r->activation, r->k);
    require(row != 0, "no such pair of format and activation");
    char *all = guarded(row * (size_t)r->batch);
    memset(all, 0xee, row * (size_t)r->batch);
    int units = wmrt_units(r->k), cut = units / 2;
    for (int b = 0; b < r->batch; b++) {
        wmrt_prepare *prepare = kernels_of(r->isa)->prepare;
        const float *from = x + (int64_t)b * r->k;
        prepare(r->format, r->activation, from, r->k, cut, units, all + row * (size_t)b);
        prepare(r->format, r->activation, from, r->k, 0, cut, all + row * (size_t)b);
    }
    return all;
}

/* rows, bias[n] if there is one, x[batch, k] -> y[batch, n]; rows not asked for stay 0xee bytes. */
static void multiply(const request *r)
{
    size_t bytes = (size_t)((r->n - 1) * r->stride + wmrt_row_bytes(r->format, r->k));
    size_t biases = r->biased ? 4 * (size_t)r->n : 0, values = 4 * (size_t)r->batch * (size_t)r->k;
    size_t results = 4 * (size_t)r->batch * (size_t)r->n;
    uint8_t *rows = read_guarded(bytes);
    float *bias = read_guarded(biases), *x = read_guarded(values), *y = guarded(results);
    void *work = prepared(r, x);
    wmrt_matrix m = {rows,      r->biased ? bias : NULL, r->stride,       r->n, r->k,
                     r->format, r->activation,           r->global_scale};
    memset(y, 0xee, results);
    kernels_of(r->isa)->rows[r->format][r->activation](&m, work, r->batch, r->begin, r->end, y,
                                                       r->n);
    written(y, results);
    released(work, wmrt_prepared_bytes(r->format, r->activation, r->k) * (size_t)r->batch);
    released(y, results);
    released(x, values);
    released(bias, biases);
    released(rows, bytes);
}

int main(int count, char **names)
{
    if (count == 1)
        return puts(wmrt_isa_name(wmrt_isa_best())) < 0;
    require(count == 3, "usage: driver REQUESTS RESULTS");
    in = fopen(names[1], "rb");
    out = fopen(names[2], "wb");
    require(in && out, "a file does not open");
    request r;
    while (fread(&r, sizeof r, 1, in) == 1) {
        if (r.operation == MULTIPLY) {
            multiply(&r);
        } else if (r.operation == PREPARE) { /* x[batch, k] -> the rows, prepared */
            void *x = read_guarded(4 * (size_t)r.batch * (size_t)r.k), *all = prepared(&r, x);
            written(all, wmrt_prepared_bytes(r.format, r.activation, r.k) * (size_t)r.batch);
        } else { /* bytes -> the checksum */
            double sum = kernels_of(r.isa)->stream(read_guarded((size_t)r.bytes), (size_t)r.bytes);
            written(&sum, sizeof sum);
        }
    }
    require(!fclose(out), "the results cannot be written");
    return 0;
}
