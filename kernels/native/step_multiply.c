/* Products in a step: activations prepared by all threads, rows multiplied by each. */
#include "ops.h"
#include "rows.h"
#include "step.h"

/* This thread's own memory: prepared rows of three places, then RMSNorm's output. */
#define PLACE ((int64_t)WMRT_OWN_UNITS * sizeof(wmrt_a16_unit)) /* the largest kind of unit */

_Static_assert(sizeof(wmrt_a16_unit) >= sizeof(wmrt_a8_unit), "PLACE is for the larger");
_Static_assert(4 * PLACE == WMRT_OWN_BYTES, "wmrt_step_bytes provides it");

/* Where a thread prepares, and which units of all rows together. */
typedef struct {
    int units; /* of one row */
    wmrt_range mine;
    int alone; /* each thread prepares everything for itself */
} portion;

static portion portion_of(const wmrt_work *w, int index)
{
    int units = wmrt_units(wmrt_matrix_at(w, index)->k), all = units * w->batch;
    int alone = all <= WMRT_OWN_UNITS;
    return (portion){units, alone ? (wmrt_range){0, all} : wmrt_mine(w, all, 1), alone};
}

/* Prepares units `mine` of x[B][k] for matrix `index` in `to`. */
static void prepare(const wmrt_work *w, int index, const portion *p, const float *x, char *to)
{
    const wmrt_matrix *m = wmrt_matrix_at(w, index);
    size_t row = wmrt_prepared_bytes(m->format, m->activation, m->k);
    for (int at = p->mine.begin; at < p->mine.end;) {
        int b = at / p->units, begin = at % p->units, left = p->mine.end - at;
        int end = left < p->units - begin ? begin + left : p->units;
        w->kernels->prepare(m->format, m->activation, x + (int64_t)b * m->k, m->k, begin, end,
                            to + row * (size_t)b);
        at += end - begin;
    }
}

wmrt_ready wmrt_ready_for(const wmrt_work *w, int index, const float *x, int slot)
{
    portion p = portion_of(w, index);
    char *to = p.alone ? w->own + slot * PLACE : w->s->prepared[slot];
    prepare(w, index, &p, x, to);
    if (!p.alone)
        wmrt_meet(w);
    return (wmrt_ready){x, to};
}

wmrt_ready wmrt_ready_normed(const wmrt_work *w, int index, const float *x, const float *weight)
{
    portion p = portion_of(w, index);
    int k = wmrt_matrix_at(w, index)->k;
    char *to = p.alone ? w->own : w->s->prepared[0];
    float *normed = p.alone ? (float *)(w->own + 3 * PLACE) : w->s->normed;
    for (int at = p.mine.begin; at < p.mine.end;) {
        int b = at / p.units, begin = at % p.units * WMRT_UNIT;
        int end = (p.mine.end - at) * WMRT_UNIT + begin;
        end = end < k ? end : k;
        const float *from = x + (int64_t)b * k;
        float scale = wmrt_rms_scale(from, k);
        for (int i = begin; i < end; i++)
            normed[(int64_t)b * k + i] = from[i] * scale * weight[i];
        at += (end - begin + WMRT_UNIT - 1) / WMRT_UNIT;
    }
    prepare(w, index, &p, normed, to);
    if (!p.alone)
        wmrt_meet(w);
    return (wmrt_ready){normed, to};
}

/* For whoever looks on: what went in, what came out. */
static void show(const wmrt_work *w, int index, wmrt_ready ready, wmrt_range rows, const float *y,
                 int ldy)
{
    const wmrt_matrix *m = wmrt_matrix_at(w, index);
    const wmrt_step_state *s = w->s;
    if (s->inputs && s->inputs[index] && w->thread == 0)
        memcpy(s->inputs[index], ready.input, (size_t)w->batch * (size_t)m->k * sizeof(float));
    if (s->outputs && s->outputs[index])
        for (int b = 0; b < w->batch; b++)
            memcpy(s->outputs[index] + (int64_t)b * m->n + rows.begin,
                   y + (int64_t)b * ldy + rows.begin,
                   (size_t)(rows.end - rows.begin) * sizeof(float));
}

void wmrt_multiply_more(const wmrt_work *w, int index, wmrt_ready ready, wmrt_range rows, float *y,
                        int ldy)
{
    const wmrt_matrix *m = wmrt_matrix_at(w, index);
    if (rows.begin < rows.end)
        w->kernels->rows[m->format][m->activation](m, ready.prepared, w->batch, rows.begin,
                                                   rows.end, y, ldy);
    if ((w->s->inputs || w->s->outputs) && (index != WMRT_GATE || w->thread == 0))
        show(w, index, ready, rows, y, ldy);
}

void wmrt_multiply(const wmrt_work *w, int index, wmrt_ready ready, wmrt_range rows, float *y,
                   int ldy)
{
    wmrt_multiply_more(w, index, ready, rows, y, ldy);
    if (w->s->calls && w->thread == 0)
        w->s->calls[index]++;
}
