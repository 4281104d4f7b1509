/* A step's first part: the state and the previous action to a token (wmrt.model.fusion), and the
 * action intent (the LSTM of wmrt.model.transition).
 */
#include <math.h>

#include "ops.h"
#include "step.h"

/* Codes are the schema's; one that is not becomes the nearest, so that no index leaves a table. */
static int64_t code_of(const wmrt_work *w, int b, int column)
{
    int64_t code = w->s->codes[(int64_t)b * w->m->columns + column];
    int64_t most = w->m->buckets[column];
    return code < 0 ? 0 : code > most ? most : code;
}

/* Columns that are a number: the bucket's two knots, interpolated; else one row. */
static void embed_field(const wmrt_work *w, int b, int column)
{
    const wmrt_model *m = w->m;
    int64_t code = code_of(w, b, column), first = m->row_offset[column] + code, second = first;
    float share = 0.0f;
    if (m->is_numeric[column] && code > 0) {
        const float *knots = m->field_knots + (int64_t)column * m->widest;
        float low = knots[code - 1], span = knots[code] - low;
        float value = w->s->values[(int64_t)b * m->columns + column];
        share = (value - low) / (span < 1e-12f ? 1e-12f : span);
        share = share < 0.0f ? 0.0f : share > 1.0f ? 1.0f : share;
        second = first + 1;
    }
    const uint16_t *lower = m->field_table + first * m->field_dim;
    const uint16_t *upper = m->field_table + second * m->field_dim;
    float *to = w->s->fields + ((int64_t)b * m->columns + column) * m->field_dim;
    for (int i = 0; i < m->field_dim; i++)
        to[i] = wmrt_lerp(wmrt_from_bf16(lower[i]), wmrt_from_bf16(upper[i]), share);
}

/* HashedMemory.row_index: integers only. Sums wrap, which the mask makes exact. */
static int64_t memory_row(const wmrt_work *w, int b, int group)
{
    const wmrt_model *m = w->m;
    uint64_t mixed = 0;
    for (int i = 0; i < m->columns; i++) {
        int64_t code = code_of(w, b, i), most = m->buckets[i] > 1 ? m->buckets[i] : 1;
        if (code > 0 && m->cells[i] > 0)
            code = 1 + (code - 1) * m->cells[i] / most;
        int64_t multiplier = m->multipliers[(int64_t)i * m->table_groups + group];
        mixed += (uint64_t)(code + 1) * (uint64_t)multiplier;
    }
    uint32_t h = (uint32_t)mixed;
    h = (h ^ (h >> 15)) * 0x2C1B3C6Du;
    h = (h ^ (h >> 12)) * 0x297A2D39u;
    return (h ^ (h >> 15)) % (uint32_t)m->table_rows;
}

void wmrt_embed_action(const wmrt_work *w, const float *action, float *to, int ld)
{
    const wmrt_model *m = w->m;
    int each = m->action_embed / m->actions, last = m->knots - 1;
    wmrt_range mine = wmrt_mine(w, w->batch * m->actions, 1);
    for (int at = mine.begin; at < mine.end; at++) {
        int b = at / m->actions, a = at % m->actions;
        float position = (action[at] + 1.0f) * 0.5f * (float)last;
        position = position < 0.0f ? 0.0f : position > (float)last ? (float)last : position;
        int lower = position == position ? (int)position : 0;
        lower = lower < last - 1 ? lower : last - 1;
        const uint16_t *row = m->action_table + ((int64_t)a * m->knots + lower) * each;
        float *out = to + (int64_t)b * ld + (int64_t)a * each, share = position - (float)lower;
        for (int i = 0; i < each; i++)
            out[i] = wmrt_lerp(wmrt_from_bf16(row[i]), wmrt_from_bf16(row[each + i]), share);
    }
}

/* Everything that needs no product: embeddings, rows of the memory, the LSTM's old state. */
static void look_up(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    wmrt_range mine = wmrt_mine(w, w->batch * m->columns, 1);
    for (int at = mine.begin; at < mine.end; at++)
        embed_field(w, at / m->columns, at % m->columns);
    mine = wmrt_mine(w, w->batch * m->table_groups, 1);
    for (int at = mine.begin; at < mine.end; at++)
        s->rows[at] = memory_row(w, at / m->table_groups, at % m->table_groups);
    mine = wmrt_mine(w, w->batch, 1);
    for (int b = mine.begin; b < mine.end; b++)
        memcpy(s->before + (int64_t)b * m->lstm, s->ring.hidden + (int64_t)s->robot[b] * m->lstm,
               (size_t)m->lstm * sizeof(float));
    wmrt_embed_action(w, s->previous, s->embedded, m->action_embed);
    wmrt_meet(w);
}

/* cos and sin of every frequency at the robots' steps; the phase is an exact count of 2^-32 turns.
 */
static void turn(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    int half = m->head_dim / 2;
    wmrt_range mine = wmrt_mine(w, w->batch * half, 1);
    for (int at = mine.begin; at < mine.end; at++) {
        uint64_t step = (uint64_t)w->s->ring.step[w->s->robot[at / half]];
        uint32_t turns = (uint32_t)(step * (uint64_t)m->increments[at % half]);
        double angle = turns * (6.283185307179586 / 4294967296.0);
        w->s->cosines[at] = (float)cos(angle);
        w->s->sines[at] = (float)sin(angle);
    }
}

/* The MLP's hidden layer, and both products of the LSTM. */
static void first_products(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    wmrt_ready fields = wmrt_ready_for(w, WMRT_MLP_IN, s->fields, 0);
    wmrt_ready action = wmrt_ready_for(w, WMRT_LSTM_IN, s->embedded, 1);
    wmrt_ready before = wmrt_ready_for(w, WMRT_LSTM_HIDDEN, s->before, 2);
    wmrt_range mine = wmrt_mine(w, m->mlp_hidden, 8);
    wmrt_multiply(w, WMRT_MLP_IN, fields, mine, s->fused, m->mlp_hidden);
    for (int b = 0; b < w->batch; b++)
        wmrt_gelu(s->fused + (int64_t)b * m->mlp_hidden + mine.begin, mine.end - mine.begin);
    int size = 4 * m->lstm;
    mine = wmrt_mine(w, size, 8);
    wmrt_multiply(w, WMRT_LSTM_IN, action, mine, s->gates, 2 * size);
    wmrt_multiply(w, WMRT_LSTM_HIDDEN, before, mine, s->gates + size, 2 * size);
    turn(w);
    wmrt_meet(w);
}

/* torch.nn.LSTMCell: input, forget, cell and output gates in this order. */
static void advance_intent(const wmrt_work *w)
{
    wmrt_step_state *s = w->s;
    int size = w->m->lstm;
    wmrt_range mine = wmrt_mine(w, w->batch * size, 1);
    for (int at = mine.begin; at < mine.end; at++) {
        int b = at / size, i = at % size;
        const float *in = s->gates + (int64_t)b * 8 * size + i, *past = in + 4 * size;
        int64_t place = (int64_t)s->robot[b] * size + i;
        float enter = wmrt_sigmoid(in[0] + past[0]), keep = wmrt_sigmoid(in[size] + past[size]);
        float cell = tanhf(in[2 * size] + past[2 * size]);
        cell = keep * s->ring.cell[place] + enter * cell;
        s->intent[at] = wmrt_sigmoid(in[3 * size] + past[3 * size]) * tanhf(cell);
        s->ring.cell[place] = cell;
        s->ring.hidden[place] = s->intent[at];
    }
}

static void second_products(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    wmrt_ready fused = wmrt_ready_for(w, WMRT_MLP_OUT, s->fused, 0);
    wmrt_multiply(w, WMRT_MLP_OUT, fused, wmrt_mine(w, m->embed, 8), s->embedding, m->embed);
    advance_intent(w);
    wmrt_meet(w);
    wmrt_range mine = wmrt_mine(w, w->batch, 1);
    for (int b = mine.begin; b < mine.end; b++) {
        float *row = s->embedding + (int64_t)b * m->embed;
        wmrt_layer_norm(row, m->embed_weight, m->embed_bias, m->embed, row);
    }
    wmrt_meet(w);
}

/* x = token + gate * memory + action for columns in `mine`; s->y and s->z hold the products. */
static void gather(const wmrt_work *w, int b, float gate, wmrt_range mine)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    int64_t row = (int64_t)b * m->d_model;
    float *memory = s->normed + row;
    for (int i = mine.begin; i < mine.end; i++)
        memory[i] = 0.0f;
    for (int g = 0; g < m->table_groups; g++) {
        const uint16_t *add = m->memory + s->rows[(int64_t)b * m->table_groups + g] * m->d_model;
        for (int i = mine.begin; i < mine.end; i++)
            memory[i] += wmrt_from_bf16(add[i]);
    }
    for (int i = mine.begin; i < mine.end; i++)
        s->x[row + i] = s->y[row + i] + gate * memory[i] + s->z[row + i];
}

void wmrt_run_token(const wmrt_work *w)
{
    const wmrt_model *m = w->m;
    wmrt_step_state *s = w->s;
    look_up(w);
    first_products(w);
    second_products(w);
    wmrt_ready embedding = wmrt_ready_for(w, WMRT_TOKEN, s->embedding, 0);
    wmrt_ready action = wmrt_ready_for(w, WMRT_ACTION_IN, s->embedded, 1);
    wmrt_ready intent = wmrt_ready_for(w, WMRT_QUERY, s->intent, 2);
    wmrt_range mine = wmrt_mine(w, m->d_model, 8);
    wmrt_multiply(w, WMRT_TOKEN, embedding, mine, s->y, m->d_model);
    wmrt_multiply(w, WMRT_ACTION_IN, action, mine, s->z, m->d_model);
    float gate[WMRT_ROBOTS]; /* one row, which every thread needs: each makes it */
    wmrt_multiply(w, WMRT_GATE, embedding, (wmrt_range){0, 1}, gate, 1);
    for (int b = 0; b < w->batch; b++)
        gather(w, b, wmrt_sigmoid(gate[b]), mine);
    wmrt_multiply(w, WMRT_QUERY, intent, wmrt_mine(w, m->select_dim, 8), s->query, m->select_dim);
    wmrt_meet(w);
}
