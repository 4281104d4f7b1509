/* The layers of a step: pre-RMSNorm attention over the chosen slots and SwiGLU, each added to the
 * residual stream (wmrt.model.trunk).
 */
#include <math.h>

#include "ops.h"
#include "step.h"

/* Keys or values of one layer, robot and KV head: slot j's head_dim numbers at j * KV * hd. */
static float *ring_of(const wmrt_work *w, float *all, int layer, int b, int group)
{
    const wmrt_model *m = w->m;
    int64_t robot = (int64_t)layer * w->s->capacity + w->s->robot[b];
    return all + (robot * m->window * m->kv_heads + group) * m->head_dim;
}

/* One query head over the slots: softmax(q k / sqrt(hd) + bias) v. `weights` is float[slots]. */
static void attend(const wmrt_work *w, int b, const float *query, const float *keys,
                   const float *values, float *weights, float *out)
{
    const wmrt_model *m = w->m;
    int count = wmrt_slots(m), size = m->head_dim, stride = m->kv_heads * size;
    const int32_t *slots = w->s->slots + (int64_t)b * m->window;
    const float *bias = w->s->bias + (int64_t)b * m->window;
    float root = (float)sqrt((double)size);
    for (int j = 0; j < count; j++)
        weights[j] = wmrt_dot(query, keys + (int64_t)slots[j] * stride, size) / root + bias[j];
    wmrt_softmax(weights, count);
    memset(out, 0, (size_t)size * sizeof(float));
    for (int j = 0; j < count; j++)
        wmrt_add_scaled(out, weights[j], values + (int64_t)slots[j] * stride, size);
}

/* One KV head of one robot: its key turned and stored with its value, then its query heads. */
static void attend_group(const wmrt_work *w, int layer, int b, int group)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    int size = m->head_dim, half = size / 2, shared = m->heads / m->kv_heads;
    const float *cosines = s->cosines + (int64_t)b * half, *sines = s->sines + (int64_t)b * half;
    float *row = s->qkv + (int64_t)b * (m->heads + 2 * m->kv_heads) * size;
    float *key = row + (m->heads + group) * size, *value = key + m->kv_heads * size;
    float *keys = ring_of(w, s->ring.keys, layer, b, group);
    float *values = ring_of(w, s->ring.values, layer, b, group);
    int64_t place = (int64_t)s->slots[(int64_t)b * m->window] * m->kv_heads * size;
    wmrt_rotate(key, cosines, sines, half);
    memcpy(keys + place, key, (size_t)size * sizeof(float));
    memcpy(values + place, value, (size_t)size * sizeof(float));
    float *weights = (float *)(w->own + WMRT_OWN_BYTES);
    for (int head = group * shared; head < (group + 1) * shared; head++) {
        wmrt_rotate(row + head * size, cosines, sines, half);
        attend(w, b, row + head * size, keys, values, weights,
               s->attended + ((int64_t)b * m->heads + head) * size);
    }
}

/* x += y for this thread's columns, scaled when someone asked for that. */
static void add_residual(const wmrt_work *w, int layer, int part, wmrt_range mine)
{
    wmrt_step_state *s = w->s;
    for (int b = 0; b < w->batch; b++) {
        int64_t row = (int64_t)b * w->m->d_model;
        float *x = s->x + row;
        const float *y = s->y + row;
        if (s->residual_scale) {
            wmrt_add_scaled(x + mine.begin, s->residual_scale[2 * layer + part], y + mine.begin,
                            mine.end - mine.begin);
            continue;
        }
        for (int i = mine.begin; i < mine.end; i++)
            x[i] += y[i];
    }
}

static void attention(const wmrt_work *w, int layer)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    int index = wmrt_of_layer(layer, WMRT_QKV), out = wmrt_of_layer(layer, WMRT_OUT);
    int rows = wmrt_matrix_at(w, index)->n;
    wmrt_ready x = wmrt_ready_normed(w, index, s->x, m->norms + (int64_t)2 * layer * m->d_model);
    wmrt_multiply(w, index, x, wmrt_mine(w, rows, 8), s->qkv, rows);
    wmrt_meet(w);
    wmrt_range mine = wmrt_mine(w, w->batch * m->kv_heads, 1);
    for (int at = mine.begin; at < mine.end; at++)
        attend_group(w, layer, at / m->kv_heads, at % m->kv_heads);
    wmrt_meet(w);
    wmrt_ready attended = wmrt_ready_for(w, out, s->attended, 0);
    mine = wmrt_mine(w, m->d_model, 8);
    wmrt_multiply(w, out, attended, mine, s->y, m->d_model);
    add_residual(w, layer, 0, mine);
    wmrt_meet(w);
}

static void mlp(const wmrt_work *w, int layer)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    int index = wmrt_of_layer(layer, WMRT_GATE_UP), down = wmrt_of_layer(layer, WMRT_DOWN);
    const float *norm = m->norms + (int64_t)(2 * layer + 1) * m->d_model;
    wmrt_ready x = wmrt_ready_normed(w, index, s->x, norm);
    wmrt_range mine = wmrt_mine(w, m->ffn, 8);
    wmrt_range upper = {mine.begin + m->ffn, mine.end + m->ffn};
    wmrt_multiply(w, index, x, mine, s->gate_up, 2 * m->ffn);
    wmrt_multiply_more(w, index, x, upper, s->gate_up, 2 * m->ffn);
    for (int b = 0; b < w->batch; b++) {
        const float *gate = s->gate_up + (int64_t)b * 2 * m->ffn;
        float *out = s->activated + (int64_t)b * m->ffn;
        wmrt_swiglu(gate + mine.begin, gate + upper.begin, mine.end - mine.begin,
                    out + mine.begin);
    }
    wmrt_meet(w);
    wmrt_ready activated = wmrt_ready_for(w, down, s->activated, 0);
    mine = wmrt_mine(w, m->d_model, 8);
    wmrt_multiply(w, down, activated, mine, s->y, m->d_model);
    add_residual(w, layer, 1, mine);
    wmrt_meet(w);
}

/* x after `layer` layers, for whoever looks on. Nothing writes x before the next barrier. */
static void trace(const wmrt_work *w, int layer)
{
    size_t size = (size_t)w->batch * (size_t)w->m->d_model;
    if (w->s->trace && w->thread == 0)
        memcpy(w->s->trace + size * (size_t)layer, w->s->x, size * sizeof(float));
}

void wmrt_run_trunk(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    trace(w, 0);
    for (int layer = 0; layer < m->layers; layer++) {
        attention(w, layer);
        mlp(w, layer);
        trace(w, layer + 1);
    }
    const float *weight = m->norms + (int64_t)2 * m->layers * m->d_model;
    wmrt_range mine = wmrt_mine(w, m->d_model, 16);
    for (int b = 0; b < w->batch; b++) {
        const float *x = s->x + (int64_t)b * m->d_model;
        float scale = wmrt_rms_scale(x, m->d_model);
        for (int i = mine.begin; i < mine.end; i++)
            s->hidden[(int64_t)b * m->d_model + i] = x[i] * scale * weight[i];
    }
    for (int b = 0; b < w->batch && w->thread == 0; b++)
        s->ring.step[s->robot[b]]++; /* the barrier behind: nobody reads it until the next call */
    wmrt_meet(w);
}
