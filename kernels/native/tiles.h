/* Walks a matrix row by row, each times up to 8 rows of activations, whose sums stay in registers.
 *
 * A kernel is one inline function `body(tile, format, batch)`. WMRT_TILES_8 makes an instance of it
 * for each batch, in which the last two are constants, and the wmrt_rows that uses them.
 *
 * One row at a time: four side by side share the loads of x, and still took 27.8 instructions
 * against 28 per row and 256 weights with AVX-512. And what is read is one stream, front to back.
 */
#ifndef WMRT_TILES_H
#define WMRT_TILES_H

#include "rows.h"

#define WMRT_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define WMRT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define WMRT_UNROLL _Pragma("GCC unroll 16")
#endif

#define WMRT_AHEAD 8192   /* bytes between what is prefetched and what is read */
#define WMRT_TILE_BATCH 8 /* rows of activations that a tile takes at most */

/* One row of weights times some rows of activations. */
typedef struct {
    const wmrt_matrix *matrix;
    const uint8_t *row;
    int number;       /* of the row */
    const uint8_t *x; /* the first row of activations, and bytes from one to the next */
    size_t pitch;
    float *y; /* the first result, and floats from one to the next */
    int64_t ldy;
} wmrt_tile;

typedef void wmrt_tile_kernel(const wmrt_tile *tile);

/* Result b of the tile. */
WMRT_INLINE void wmrt_put(const wmrt_tile *t, int b, float sum)
{
    t->y[b * t->ldy] = wmrt_scaled(t->matrix, t->number, sum);
}

/* As `wmrt_rows`, by kernels for 1 to `most` rows of activations. More are cut into parts of about
 * one size, all of which a row meets before the next one. */
WMRT_INLINE void wmrt_walk(wmrt_tile_kernel *const *kernels, int most, const wmrt_matrix *m,
                           const void *prepared, int batch, int begin, int end, float *y,
                           int64_t ldy)
{
    size_t pitch = wmrt_prepared_bytes(m->format, m->activation, m->k);
    int parts = (batch + most - 1) / most;
    wmrt_tile t = {.matrix = m, .pitch = pitch, .ldy = ldy};
    for (int n = begin; n < end; n++)
        for (int p = 0; p < parts; p++) {
            int from = batch * p / parts, to = batch * (p + 1) / parts;
            t.row = m->rows + n * m->stride;
            t.number = n;
            t.x = (const uint8_t *)prepared + pitch * (size_t)from;
            t.y = y + from * ldy + n;
            kernels[to - from - 1](&t);
        }
}

#define WMRT_TILE(name, body, format, batch)                                                       \
    static void name##_x##batch(const wmrt_tile *tile)                                             \
    {                                                                                              \
        body(tile, format, batch);                                                                 \
    }

#define WMRT_ROWS(name, most, ...)                                                                 \
    void name(const wmrt_matrix *m, const void *prepared, int batch, int begin, int end, float *y, \
              int64_t ldy)                                                                         \
    {                                                                                              \
        static wmrt_tile_kernel *const kernels[] = {__VA_ARGS__};                                  \
        wmrt_walk(kernels, most, m, prepared, batch, begin, end, y, ldy);                          \
    }

#define WMRT_TILES_4(name, body, format)                                                           \
    WMRT_TILE(name, body, format, 1)                                                               \
    WMRT_TILE(name, body, format, 2)                                                               \
    WMRT_TILE(name, body, format, 3)                                                               \
    WMRT_TILE(name, body, format, 4)                                                               \
    WMRT_ROWS(name, 4, name##_x1, name##_x2, name##_x3, name##_x4)

#define WMRT_TILES_8(name, body, format)                                                           \
    WMRT_TILE(name, body, format, 1)                                                               \
    WMRT_TILE(name, body, format, 2)                                                               \
    WMRT_TILE(name, body, format, 3)                                                               \
    WMRT_TILE(name, body, format, 4)                                                               \
    WMRT_TILE(name, body, format, 5)                                                               \
    WMRT_TILE(name, body, format, 6)                                                               \
    WMRT_TILE(name, body, format, 7)                                                               \
    WMRT_TILE(name, body, format, 8)                                                               \
    WMRT_ROWS(name, 8, name##_x1, name##_x2, name##_x3, name##_x4, name##_x5, name##_x6,           \
              name##_x7, name##_x8)

#endif
