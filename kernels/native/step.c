/* A step's entry: the model checked, a state's arrays placed, the stages run by all threads. */
#include "rows.h"
#include "step.h"

#define MOST (1 << 20) /* of any size in a model */
#define ALIGNED 64

typedef struct {
    int64_t n, k;
} shape;

/* What matrix `index` must be. */
static shape shape_of(const wmrt_model *m, int index)
{
    int64_t d = m->d_model, hd = m->head_dim, lstm = m->lstm, dyn = m->dyn_hidden;
    int64_t bins = (int64_t)m->chunk * m->actions * m->action_bins;
    const shape once[WMRT_LAYERS] = {
        [WMRT_MLP_IN] = {m->mlp_hidden, (int64_t)m->columns * m->field_dim},
        [WMRT_MLP_OUT] = {m->embed, m->mlp_hidden},
        [WMRT_TOKEN] = {d, m->embed},
        [WMRT_GATE] = {1, m->embed},
        [WMRT_ACTION_IN] = {d, m->action_embed},
        [WMRT_LSTM_IN] = {4 * lstm, m->action_embed},
        [WMRT_LSTM_HIDDEN] = {4 * lstm, lstm},
        [WMRT_QUERY] = {m->select_dim, lstm},
        [WMRT_KEY] = {m->select_dim, d},
        [WMRT_HEAD_HIDDEN] = {m->head_hidden, d},
        [WMRT_HEAD_OUT] = {bins, m->head_hidden},
        [WMRT_DYN_IN] = {dyn, d + m->action_embed},
        [WMRT_DYN_HIDDEN] = {dyn, dyn},
        [WMRT_CHANGE] = {(int64_t)m->numbers * m->state_bins, dyn},
        [WMRT_MISSING] = {m->numbers, dyn},
        [WMRT_CATEGORY] = {m->category_logits, dyn},
        [WMRT_REWARD] = {m->reward_bins, dyn},
        [WMRT_PROCEED] = {1, dyn},
    };
    const shape layer[WMRT_PER_LAYER] = {
        [WMRT_QKV] = {(m->heads + 2 * (int64_t)m->kv_heads) * hd, d},
        [WMRT_OUT] = {d, m->heads * hd},
        [WMRT_GATE_UP] = {2 * (int64_t)m->ffn, d},
        [WMRT_DOWN] = {d, m->ffn},
    };
    return index < WMRT_LAYERS ? once[index] : layer[(index - WMRT_LAYERS) % WMRT_PER_LAYER];
}

static int matrices(const wmrt_model *m)
{
    return WMRT_LAYERS + WMRT_PER_LAYER * m->layers;
}

/* Sizes that must be positive, and how they fit together. */
static int sound(const wmrt_model *m)
{
    const int32_t positive[] = {
        m->columns, m->actions, m->d_model, m->layers, m->heads, m->kv_heads, m->head_dim, m->ffn,
        m->window, m->field_dim, m->widest, m->mlp_hidden, m->embed, m->field_rows, m->table_rows,
        m->table_groups, m->action_embed, m->lstm, m->select_dim, m->chunk, m->action_bins,
        m->head_hidden, m->dyn_hidden, m->state_bins, m->reward_bins,
    };
    const int32_t others[] = {m->numbers, m->categories, m->past, m->category_logits};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        if (positive[i] < 1 || positive[i] > MOST)
            return 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] < 0 || others[i] > MOST)
            return 0;
    return m->knots > 1 && m->past < m->window && m->heads % m->kv_heads == 0 &&
           m->head_dim % 2 == 0 && m->action_embed % m->actions == 0 && m->selector >= 0 &&
           m->selector < WMRT_SELECTORS && m->numbers + m->categories == m->columns;
}

/* Every matrix of the shape the model says, and known. */
static int sound_matrices(const wmrt_model *m)
{
    for (int i = 0; i < matrices(m); i++) {
        const wmrt_matrix *at = &m->matrix[i];
        shape want = shape_of(m, i);
        if (at->n != want.n || (want.n && at->k != want.k) || want.n > INT32_MAX / WMRT_ROBOTS)
            return 0;
        if (want.n && (!at->rows || !wmrt_prepared_bytes(at->format, at->activation, at->k) ||
                       at->stride < wmrt_row_bytes(at->format, at->k)))
            return 0;
    }
    return 1;
}

/* Bytes of a prepared row, of the largest. */
static int64_t prepared_bytes(const wmrt_model *m)
{
    size_t most = 0;
    for (int i = 0; i < matrices(m); i++) {
        const wmrt_matrix *at = &m->matrix[i];
        size_t bytes = at->n ? wmrt_prepared_bytes(at->format, at->activation, at->k) : 0;
        most = bytes > most ? bytes : most;
    }
    return (int64_t)most;
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* Places arrays one behind the other; with `base` NULL it only counts. */
typedef struct {
    char *base;
    int64_t used;
} cursor;

static void *take(cursor *c, int64_t bytes)
{
    void *at = c->base ? c->base + c->used : NULL;
    c->used += rounded(bytes);
    return at;
}

static float *numbers(cursor *c, const wmrt_step_state *s, int64_t width)
{
    return take(c, s->capacity * width * (int64_t)sizeof(float));
}

static void place_io(wmrt_step_state *s, cursor *c)
{
    const wmrt_model *m = s->model;
    int64_t entries = (int64_t)m->chunk * m->actions;
    s->codes = take(c, (int64_t)s->capacity * m->columns * 8);
    s->values = numbers(c, s, m->columns);
    s->previous = numbers(c, s, m->actions);
    s->hidden = numbers(c, s, m->d_model);
    s->logits = numbers(c, s, entries * m->action_bins);
    s->chunk = numbers(c, s, entries);
    s->action = numbers(c, s, m->actions);
    s->change = numbers(c, s, (int64_t)m->numbers * m->state_bins);
    s->missing = numbers(c, s, m->numbers);
    s->category = numbers(c, s, m->category_logits);
    s->reward = numbers(c, s, m->reward_bins);
    s->proceed = numbers(c, s, 1);
    s->following = numbers(c, s, m->numbers);
    s->category_code = take(c, (int64_t)s->capacity * m->categories * 8);
    s->expected = numbers(c, s, 1);
    s->continues = numbers(c, s, 1);
}

static void place_inner(wmrt_step_state *s, cursor *c)
{
    const wmrt_model *m = s->model;
    s->fields = numbers(c, s, (int64_t)m->columns * m->field_dim);
    s->fused = numbers(c, s, m->mlp_hidden);
    s->embedded = numbers(c, s, m->action_embed);
    s->before = numbers(c, s, m->lstm);
    s->gates = numbers(c, s, 8 * (int64_t)m->lstm);
    s->intent = numbers(c, s, m->lstm);
    s->embedding = numbers(c, s, m->embed);
    s->query = numbers(c, s, m->select_dim);
    s->key = numbers(c, s, m->select_dim);
    s->x = numbers(c, s, m->d_model);
    s->normed = numbers(c, s, m->d_model);
    s->y = numbers(c, s, m->d_model);
    s->z = numbers(c, s, m->d_model);
    s->qkv = numbers(c, s, shape_of(m, wmrt_of_layer(0, WMRT_QKV)).n);
    s->attended = numbers(c, s, (int64_t)m->heads * m->head_dim);
    s->gate_up = numbers(c, s, 2 * (int64_t)m->ffn);
    s->activated = numbers(c, s, m->ffn);
    s->head = numbers(c, s, m->head_hidden);
    s->joined = numbers(c, s, (int64_t)m->d_model + m->action_embed);
    s->dyn = numbers(c, s, m->dyn_hidden);
    s->dyn2 = numbers(c, s, m->dyn_hidden);
    s->rewards = numbers(c, s, m->reward_bins);
    s->cosines = numbers(c, s, m->head_dim / 2);
    s->sines = numbers(c, s, m->head_dim / 2);
    s->bias = numbers(c, s, m->window);
    s->slots = take(c, (int64_t)s->capacity * m->window * 4);
    s->rows = take(c, (int64_t)s->capacity * m->table_groups * 8);
}

static int64_t place(wmrt_step_state *s, char *block)
{
    cursor c = {block, 0};
    place_io(s, &c);
    place_inner(s, &c);
    int64_t row = prepared_bytes(s->model);
    for (int i = 0; i < 3; i++)
        s->prepared[i] = take(&c, s->capacity * row);
    s->own_bytes = rounded(WMRT_OWN_BYTES + (int64_t)s->model->window * (int64_t)sizeof(float));
    s->own = take(&c, s->threads * s->own_bytes);
    return c.used;
}

size_t wmrt_step_bytes(const wmrt_model *model, int capacity, int threads)
{
    if (!model || capacity < 1 || capacity > WMRT_ROBOTS || threads < 1 || threads > MOST)
        return 0;
    if (!sound(model) || !model->matrix || !sound_matrices(model))
        return 0;
    wmrt_step_state s = {.model = model, .capacity = capacity, .threads = threads};
    return (size_t)place(&s, NULL);
}

int wmrt_step_init(wmrt_step_state *state, void *block)
{
    if (!state || !block || (uintptr_t)block % ALIGNED ||
        !wmrt_step_bytes(state->model, state->capacity, state->threads) ||
        wmrt_pool_threads(state->pool) != state->threads)
        return WMRT_E_ARGUMENT;
    if (!wmrt_kernels_of(state->isa))
        return WMRT_E_ISA;
    for (int i = 0; i < matrices(state->model); i++) {
        const wmrt_matrix *m = &state->model->matrix[i];
        if (m->n && !wmrt_step_kernel(state->isa, m->format, m->activation))
            return WMRT_E_FORMAT;
    }
    place(state, block);
    return 0;
}

typedef struct {
    wmrt_step_state *state;
    const wmrt_kernels *kernels;
    int stages;
} call;

static void run(void *argument, int thread, int threads, wmrt_pool *pool)
{
    const call *c = argument;
    wmrt_step_state *s = c->state;
    wmrt_work w = {s->model,  s,       c->kernels, pool,
                   thread,    threads, s->batch,   s->own + thread * s->own_bytes};
    if (c->stages & WMRT_TRUNK) {
        wmrt_run_token(&w);
        wmrt_run_select(&w);
        wmrt_run_trunk(&w);
    }
    if (c->stages & WMRT_HEAD)
        wmrt_run_head(&w);
    if (c->stages & WMRT_PREDICT)
        wmrt_run_predict(&w);
    if (c->stages & WMRT_DECODE)
        wmrt_run_decode(&w);
}

/* Different robots of the ring, whose step counts are those of some steps taken. */
static int sound_batch(const wmrt_step_state *s)
{
    unsigned seen = 0;
    if (s->batch < 1 || s->batch > s->capacity)
        return 0;
    for (int b = 0; b < s->batch; b++) {
        int robot = s->robot[b];
        if (robot < 0 || robot >= s->capacity || seen >> robot & 1 || s->ring.step[robot] < 0)
            return 0;
        seen |= 1u << robot;
    }
    return 1;
}

int wmrt_step_run(wmrt_step_state *state, int stages)
{
    if (!state || !state->own || stages < 1 || stages > WMRT_STAGES || !sound_batch(state))
        return WMRT_E_ARGUMENT;
    call c = {state, wmrt_kernels_of(state->isa), stages};
    wmrt_pool_run(state->pool, run, &c);
    return 0;
}

size_t wmrt_step_sizeof(int which)
{
    return which == 0 ? sizeof(wmrt_model) : which == 1 ? sizeof(wmrt_step_state) : 0;
}

const char *wmrt_step_kernel(int isa, int format, int activation)
{
    const wmrt_kernels *kernels = wmrt_kernels_of(isa);
    if (!kernels || format < 0 || format >= WMRT_FORMATS || activation < 0 ||
        activation >= WMRT_ACTIVATIONS || !kernels->rows[format][activation])
        return NULL;
    int own = kernels->rows[format][activation] != wmrt_kernels_portable.rows[format][activation];
    return own ? kernels->name : wmrt_kernels_portable.name;
}
