/* Which past slots a step reads (wmrt.model.transition). One choice for all layers and heads. */
#include <math.h>

#include "ops.h"
#include "step.h"

/* The choice of one robot while it is made: the best slots so far, best first. */
typedef struct {
    int32_t *slots;
    float *scores; /* becomes the bias */
    int kept, wanted;
} choice;

/* NaN ranks first, as in torch.topk. Equal scores: the earlier offer, which is the later state,
 * stays ahead (torch leaves that open). */
static int ahead(float a, float b)
{
    return a > b || (a != a && b == b);
}

static void offer(choice *c, int slot, float score)
{
    if (c->kept == c->wanted && (c->wanted == 0 || !ahead(score, c->scores[c->kept - 1])))
        return;
    int at = c->kept < c->wanted ? c->kept++ : c->kept - 1;
    for (; at > 0 && ahead(score, c->scores[at - 1]); at--) {
        c->slots[at] = c->slots[at - 1];
        c->scores[at] = c->scores[at - 1];
    }
    c->slots[at] = slot;
    c->scores[at] = score;
}

/* A past slot by its age, 1 to W - 1. */
static int slot_at(int present, int age, int window)
{
    return (present - age + window) % window;
}

static void by_score(const wmrt_work *w, int b, int present, int written, choice *c)
{
    const wmrt_model *m = w->m;
    const wmrt_step_state *s = w->s;
    const float *query = s->query + (int64_t)b * m->select_dim;
    const float *keys =
        s->ring.select_keys + (int64_t)s->robot[b] * m->window * m->select_dim;
    float scale = (float)(1.0 / sqrt((double)m->select_dim));
    for (int age = 1; age <= written; age++) {
        int slot = slot_at(present, age, m->window);
        float score = wmrt_dot(query, keys + (int64_t)slot * m->select_dim, m->select_dim);
        offer(c, slot, score * scale + m->age_bias[age]);
    }
    for (int i = 0; i < c->kept; i++)
        c->scores[i] = wmrt_log_sigmoid(c->scores[i]);
}

/* Slots and biases of robot b: the present slot, the chosen ones, then any that are not written
 * yet, whose bias is -inf. */
static void select_for(const wmrt_work *w, int b)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    int64_t step = s->ring.step[s->robot[b]], place = (int64_t)b * m->window;
    int present = (int)(step % m->window), count = wmrt_slots(m) - 1;
    int written = step < m->window - 1 ? (int)step : m->window - 1;
    choice c = {s->slots + place + 1, s->bias + place + 1, 0, count < written ? count : written};
    s->slots[place] = present;
    s->bias[place] = 0.0f;
    if (m->selector == WMRT_LEARNED)
        by_score(w, b, present, written, &c);
    for (int age = 1; m->selector != WMRT_LEARNED && age <= c.wanted; age++) {
        c.slots[age - 1] = slot_at(present, age, m->window);
        c.scores[age - 1] = 0.0f;
    }
    for (int i = c.wanted; i < count; i++) {
        c.slots[i] = slot_at(present, written + 1 + i - c.wanted, m->window);
        c.scores[i] = -INFINITY;
    }
}

void wmrt_run_select(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    wmrt_ready x = wmrt_ready_for(w, WMRT_KEY, s->x, 0);
    wmrt_range mine = wmrt_mine(w, m->select_dim, 8);
    wmrt_multiply(w, WMRT_KEY, x, mine, s->key, m->select_dim);
    for (int b = 0; b < w->batch; b++) {
        int64_t slot = s->ring.step[s->robot[b]] % m->window;
        float *to = s->ring.select_keys +
                    ((int64_t)s->robot[b] * m->window + slot) * m->select_dim;
        const float *from = s->key + (int64_t)b * m->select_dim;
        memcpy(to + mine.begin, from + mine.begin,
               (size_t)(mine.end - mine.begin) * sizeof(float));
    }
    mine = wmrt_mine(w, w->batch, 1); /* the present slot's key plays no part in the choice */
    for (int b = mine.begin; b < mine.end; b++)
        select_for(w, b);
    wmrt_meet(w);
}
