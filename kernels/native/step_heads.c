/* The heads of a step and what is read off them (wmrt.model.heads). */
#include <math.h>

#include "ops.h"
#include "step.h"

/* This thread's rows of a layer and GELU, into y[B][n]; ends with a barrier. */
static void hidden_layer(const wmrt_work *w, int index, const float *x, float *y)
{
    int size = wmrt_matrix_at(w, index)->n;
    wmrt_ready ready = wmrt_ready_for(w, index, x, 0);
    wmrt_range mine = wmrt_mine(w, size, 8);
    wmrt_multiply(w, index, ready, mine, y, size);
    for (int b = 0; b < w->batch; b++)
        wmrt_gelu(y + (int64_t)b * size + mine.begin, mine.end - mine.begin);
    wmrt_meet(w);
}

/* This thread's rows of a last layer into y[B][n]. */
static void last_layer(const wmrt_work *w, int index, wmrt_ready ready, float *y)
{
    int size = wmrt_matrix_at(w, index)->n;
    if (size > 0)
        wmrt_multiply(w, index, ready, wmrt_mine(w, size, 8), y, size);
}

void wmrt_run_head(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    hidden_layer(w, WMRT_HEAD_HIDDEN, s->hidden, s->head);
    last_layer(w, WMRT_HEAD_OUT, wmrt_ready_for(w, WMRT_HEAD_OUT, s->head, 0), s->logits);
    wmrt_meet(w);
    int each = m->chunk * m->actions;
    wmrt_range mine = wmrt_mine(w, w->batch * each, 1);
    for (int at = mine.begin; at < mine.end; at++) {
        const float *logits = s->logits + (int64_t)at * m->action_bins;
        s->chunk[at] = wmrt_decode_mode(logits, m->action_centers, m->action_bins);
        if (at % each < m->actions)
            s->action[at / each * m->actions + at % each] = s->chunk[at];
    }
    wmrt_meet(w);
}

void wmrt_run_predict(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    int width = m->d_model + m->action_embed;
    wmrt_range mine = wmrt_mine(w, m->d_model, 16);
    for (int b = 0; b < w->batch; b++)
        memcpy(s->joined + (int64_t)b * width + mine.begin,
               s->hidden + (int64_t)b * m->d_model + mine.begin,
               (size_t)(mine.end - mine.begin) * sizeof(float));
    wmrt_embed_action(w, s->action, s->joined + m->d_model, width);
    wmrt_meet(w);
    hidden_layer(w, WMRT_DYN_IN, s->joined, s->dyn);
    hidden_layer(w, WMRT_DYN_HIDDEN, s->dyn, s->dyn2);
    wmrt_ready ready = wmrt_ready_for(w, WMRT_REWARD, s->dyn2, 0);
    last_layer(w, WMRT_CHANGE, ready, s->change);
    last_layer(w, WMRT_MISSING, ready, s->missing);
    last_layer(w, WMRT_CATEGORY, ready, s->category);
    last_layer(w, WMRT_REWARD, ready, s->reward);
    last_layer(w, WMRT_PROCEED, ready, s->proceed);
    wmrt_meet(w);
}

static float clamped(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* The value a number will have: DynamicsHead.decode_state. */
static float following(const wmrt_work *w, int b, int number)
{
    const wmrt_model *m = w->m;
    const wmrt_step_state *s = w->s;
    int64_t column = (int64_t)b * m->columns + m->numeric_index[number];
    const float *logits = s->change + ((int64_t)b * m->numbers + number) * m->state_bins;
    float coded = wmrt_decode_mode(logits, m->state_centers, m->state_bins) *
                  m->delta_limit[number];
    float change = copysignf(expm1f(fabsf(coded)), coded) * m->delta_scale[number];
    float base = s->codes[column] > 0 ? s->values[column] : m->fill[number];
    return clamped(base + change, m->low[number], m->high[number]);
}

static void decode_categories(const wmrt_work *w, int b)
{
    const wmrt_model *m = w->m;
    const float *logits = w->s->category + (int64_t)b * m->category_logits;
    for (int i = 0; i < m->categories; i++) {
        int size = (int)m->category_sizes[i];
        w->s->category_code[(int64_t)b * m->categories + i] = wmrt_argmax(logits, size);
        logits += size;
    }
}

void wmrt_run_decode(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    wmrt_range mine = wmrt_mine(w, w->batch * m->numbers, 1);
    for (int at = mine.begin; at < mine.end; at++)
        s->following[at] = following(w, at / m->numbers, at % m->numbers);
    mine = wmrt_mine(w, w->batch, 1);
    for (int b = mine.begin; b < mine.end; b++) {
        float *reward = s->rewards + (int64_t)b * m->reward_bins;
        memcpy(reward, s->reward + (int64_t)b * m->reward_bins,
               (size_t)m->reward_bins * sizeof(float));
        wmrt_softmax(reward, m->reward_bins);
        s->expected[b] = wmrt_dot(reward, m->reward_centers, m->reward_bins) * m->reward_scale;
        s->continues[b] = wmrt_sigmoid(s->proceed[b]);
        decode_categories(w, b);
    }
    wmrt_meet(w);
}
