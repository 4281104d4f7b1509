/* One control step of up to 16 robots in one call: state codes in, actions and consequences out.
 *
 * The three structures are the interface to Python (step.py mirrors them field by field). The
 * caller owns all memory; a step allocates nothing. Arrays are dense, in C order; B is `batch`.
 */
#ifndef WMRT_STEP_H
#define WMRT_STEP_H

#include "kernels.h"

#define WMRT_ROBOTS 16 /* robots in one step at most */

/* How past slots are chosen: by learned scores, all of them, the latest. */
enum { WMRT_LEARNED, WMRT_FULL, WMRT_RECENT, WMRT_SELECTORS };

/* What a call does, in this order; stages that need what another made may come in a later call.
 * TRUNK: codes, values, previous -> hidden; advances the ring. HEAD: hidden -> logits, chunk,
 * action. PREDICT: hidden, action -> change .. proceed. DECODE: those, codes, values ->
 * following .. continues. */
enum { WMRT_TRUNK = 1, WMRT_HEAD = 2, WMRT_PREDICT = 4, WMRT_DECODE = 8, WMRT_STAGES = 15 };

/* Places in `wmrt_model.matrix`: those that every model has once, then four of each layer. */
enum {
    WMRT_MLP_IN, WMRT_MLP_OUT, WMRT_TOKEN, WMRT_GATE, WMRT_ACTION_IN,
    WMRT_LSTM_IN, WMRT_LSTM_HIDDEN, WMRT_QUERY, WMRT_KEY,
    WMRT_HEAD_HIDDEN, WMRT_HEAD_OUT,
    WMRT_DYN_IN, WMRT_DYN_HIDDEN, WMRT_CHANGE, WMRT_MISSING, WMRT_CATEGORY, WMRT_REWARD,
    WMRT_PROCEED,
    WMRT_LAYERS
};
enum { WMRT_QKV, WMRT_OUT, WMRT_GATE_UP, WMRT_DOWN, WMRT_PER_LAYER };

/* Weights and constants; shared, read only. Names follow wmrt/model. `bf16` is bfloat16 bits. */
typedef struct {
    int32_t columns, numbers, categories, actions;
    int32_t d_model, layers, heads, kv_heads, head_dim, ffn;
    int32_t window, past, selector;
    int32_t field_dim, widest, mlp_hidden, embed, field_rows, table_rows, table_groups;
    int32_t knots, action_embed, lstm, select_dim;
    int32_t chunk, action_bins, head_hidden, dyn_hidden, state_bins, reward_bins, category_logits;
    float reward_scale;
    const wmrt_matrix *matrix;  /* [WMRT_LAYERS + WMRT_PER_LAYER * layers]; n = 0: not there */
    const float *norms;         /* [2 layers + 1][d]: attention, mlp of each layer; the last */
    const uint16_t *field_table; /* bf16[field_rows][field_dim] */
    const uint16_t *memory;      /* bf16[table_rows][d] */
    const uint16_t *action_table; /* bf16[A][knots][action_embed / A] */
    const int64_t *row_offset, *cells, *buckets; /* [F]; buckets: the largest code */
    const int64_t *multipliers;                  /* [F][groups] */
    const int64_t *increments;                   /* [head_dim / 2], 2^-32 turns */
    const int64_t *numeric_index;                /* [Fn] columns */
    const int64_t *category_sizes;               /* [Fc] */
    const uint8_t *is_numeric;                   /* [F] */
    const float *field_knots;                    /* [F][widest] */
    const float *embed_weight, *embed_bias;      /* [embed], LayerNorm */
    const float *age_bias;                       /* [W] */
    const float *action_centers, *state_centers, *reward_centers;
    const float *delta_scale, *delta_limit, *fill, *low, *high; /* [Fn] */
} wmrt_model;

/* Past states of R robots, as wmrt.model.network.Ring. */
typedef struct {
    float *keys, *values;         /* [layers][R][W][KV][hd] */
    float *select_keys;           /* [R][W][select_dim] */
    float *hidden, *cell;         /* [R][lstm] */
    int64_t *step;                /* [R] */
} wmrt_ring;

/* What one step of B robots reads, makes and needs. `wmrt_step_init` fills in from `codes` on. */
typedef struct {
    const wmrt_model *model;
    wmrt_pool *pool;
    wmrt_ring ring;
    int32_t isa, threads;
    int32_t capacity; /* the largest batch, and R */
    int32_t batch;    /* robots that step now */
    int32_t robot[WMRT_ROBOTS]; /* of row b in the ring; all different */

    /* For tests and gates, all NULL otherwise. residual_scale: [layers][2], factors of what
     * attention and MLP add. trace: [layers + 1][B][d], the token and x after each layer.
     * calls: [matrices], how often each ran. inputs, outputs: [matrices], NULL or where to copy
     * float[B][k] and float[B][n]. */
    const float *residual_scale;
    float *trace;
    int64_t *calls;
    float *const *inputs, *const *outputs;

    int64_t *codes;                  /* [B][F] */
    float *values, *previous;        /* [B][F], [B][A] */
    float *hidden, *logits, *chunk;  /* [B][d], [B][H][A][bins], [B][H][A] */
    float *action;                   /* [B][A] */
    float *change, *missing;         /* [B][Fn][bins], [B][Fn] logits */
    float *category, *reward;        /* [B][category_logits], [B][reward_bins] logits */
    float *proceed;                  /* [B] logits */
    float *following;                /* [B][Fn] */
    int64_t *category_code;          /* [B][Fc] */
    float *expected, *continues;     /* [B] reward, probability */

    float *fields, *fused;           /* [B][F field_dim], [B][mlp_hidden] */
    float *embedded, *before;        /* [B][action_embed], [B][lstm]: the action, the old hidden */
    float *gates, *intent;           /* [B][2][4 lstm], [B][lstm] */
    float *embedding, *query, *key;  /* [B][embed], [B][select_dim] */
    float *x, *normed, *y, *z;       /* [B][d]: the residual stream, RMSNorm(x), results */
    float *qkv, *attended;           /* [B][(H + 2 KV) hd], [B][H hd] */
    float *gate_up, *activated;      /* [B][2][ffn], [B][ffn] */
    float *head, *joined;            /* [B][head_hidden], [B][d + action_embed] */
    float *dyn, *dyn2, *rewards;     /* [B][dyn_hidden], twice; [B][reward_bins] */
    float *cosines, *sines;          /* [B][hd / 2] */
    float *bias;                     /* [B][W], of the slots read, the present one first */
    int32_t *slots;                  /* [B][W] */
    int64_t *rows;                   /* [B][groups] of the memory */
    char *prepared[3], *own;         /* [B] rows each; [threads][own_bytes] */
    int64_t own_bytes;
} wmrt_step_state;

/* Bytes of the block that a state of `capacity` robots and `threads` needs, a multiple of 64;
 * 0: the model or a number is not one that can be stepped. */
WMRT_API size_t wmrt_step_bytes(const wmrt_model *model, int capacity, int threads);

/* Places a state's arrays in `block` (64-byte aligned, zeroed, `wmrt_step_bytes`); model, pool,
 * ring, isa, threads and capacity are set already. */
WMRT_API int wmrt_step_init(wmrt_step_state *state, void *block);

/* Runs `stages`. */
WMRT_API int wmrt_step_run(wmrt_step_state *state, int stages);

/* sizeof wmrt_model (0) and wmrt_step_state (1): what the caller's mirrors are checked against. */
WMRT_API size_t wmrt_step_sizeof(int which);

/* Name of the instruction set whose kernel multiplies such a matrix under `isa`; NULL: none. */
WMRT_API const char *wmrt_step_kernel(int isa, int format, int activation);

/* -- between the parts of a step -------------------------------------------------------------- */

/* One thread's view of a running step. */
typedef struct {
    const wmrt_model *m;
    wmrt_step_state *s;
    const wmrt_kernels *kernels;
    wmrt_pool *pool;
    int thread, threads, batch;
    char *own; /* this thread's `own_bytes` */
} wmrt_work;

/* Activations ready for a matrix: as given (`input`, [B][k]) and prepared. */
typedef struct {
    const float *input;
    const void *prepared;
} wmrt_ready;

/* Up to so many units every thread prepares them all for itself; more are shared out, for one
 * barrier more. */
#define WMRT_OWN_UNITS 8

/* A thread's own memory: what step_multiply.c keeps, then float[W]. */
#define WMRT_OWN_BYTES (4 * WMRT_OWN_UNITS * 1024)

static inline void wmrt_meet(const wmrt_work *w)
{
    wmrt_pool_barrier(w->pool, w->thread);
}

static inline wmrt_range wmrt_mine(const wmrt_work *w, int count, int grain)
{
    return wmrt_share(count, grain, w->thread, w->threads);
}

static inline const wmrt_matrix *wmrt_matrix_at(const wmrt_work *w, int index)
{
    return &w->m->matrix[index];
}

/* Number of a layer's matrix. */
static inline int wmrt_of_layer(int layer, int which)
{
    return WMRT_LAYERS + WMRT_PER_LAYER * layer + which;
}

/* x[B][k] prepared for matrix `index` in place `slot` (0 to 2). All threads call it, after a
 * barrier behind the writes to x; the result may be read at once. */
WMRT_HIDDEN wmrt_ready wmrt_ready_for(const wmrt_work *w, int index, const float *x, int slot);

/* The same of RMSNorm(x) times `weight`. */
WMRT_HIDDEN wmrt_ready wmrt_ready_normed(const wmrt_work *w, int index, const float *x,
                                         const float *weight);

/* Rows [begin, end) of matrix `index` into y[b * ldy + row]; and further rows of the same product,
 * which do not count as another call of it. */
WMRT_HIDDEN void wmrt_multiply(const wmrt_work *w, int index, wmrt_ready ready, wmrt_range rows,
                               float *y, int ldy);
WMRT_HIDDEN void wmrt_multiply_more(const wmrt_work *w, int index, wmrt_ready ready,
                                    wmrt_range rows, float *y, int ldy);

/* Slots that a layer reads, the present one included. */
static inline int wmrt_slots(const wmrt_model *m)
{
    return m->selector == WMRT_FULL ? m->window : m->past + 1;
}

/* This thread's part of the embedding of action[B][A] into to[b * ld + ...]. */
WMRT_HIDDEN void wmrt_embed_action(const wmrt_work *w, const float *action, float *to, int ld);

/* Each ends with a barrier behind its results. */
WMRT_HIDDEN void wmrt_run_token(const wmrt_work *w);   /* codes, values, previous -> x, query */
WMRT_HIDDEN void wmrt_run_select(const wmrt_work *w);  /* x, query -> slots, bias */
WMRT_HIDDEN void wmrt_run_trunk(const wmrt_work *w);   /* x -> hidden */
WMRT_HIDDEN void wmrt_run_head(const wmrt_work *w);    /* hidden -> logits, chunk, action */
WMRT_HIDDEN void wmrt_run_predict(const wmrt_work *w); /* hidden, action -> change .. proceed */
WMRT_HIDDEN void wmrt_run_decode(const wmrt_work *w);  /* .. -> following .. continues */

#endif
