/* Elementwise operations and small reductions of a step, in fixed order: the same bits for every
 * batch, number of threads and instruction set. NaN and infinity pass through as in torch.
 */
#ifndef WMRT_OPS_H
#define WMRT_OPS_H

#include <string.h>

#include "kernels.h"

static inline float wmrt_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* a to b as torch.lerp goes: from the nearer end. */
static inline float wmrt_lerp(float a, float b, float t)
{
    return t < 0.5f ? a + t * (b - a) : b - (b - a) * (1.0f - t);
}

WMRT_HIDDEN float wmrt_dot(const float *a, const float *b, int n);
WMRT_HIDDEN void wmrt_add_scaled(float *y, float scale, const float *x, int n); /* y += scale x */
WMRT_HIDDEN float wmrt_sigmoid(float x);
WMRT_HIDDEN float wmrt_log_sigmoid(float x);

/* gelu(x) = x (1 + erf(x / sqrt 2)) / 2, in place. */
WMRT_HIDDEN void wmrt_gelu(float *x, int n);

/* y = gate sigmoid(gate) up. */
WMRT_HIDDEN void wmrt_swiglu(const float *gate, const float *up, int n, float *y);

/* 1 / sqrt(mean(x^2) + 1e-5). */
WMRT_HIDDEN float wmrt_rms_scale(const float *x, int n);
WMRT_HIDDEN void wmrt_layer_norm(const float *x, const float *weight, const float *bias, int n,
                                 float *y);

/* In place. One NaN makes all of them NaN; -inf becomes exactly 0. */
WMRT_HIDDEN void wmrt_softmax(float *x, int n);

/* The first largest; a NaN counts as the largest. n >= 1. */
WMRT_HIDDEN int wmrt_argmax(const float *x, int n);

/* Expectation of centers over the bins within 2 of the mode (wmrt.model.twohot.decode_mode). */
WMRT_HIDDEN float wmrt_decode_mode(const float *logits, const float *centers, int bins);

/* Pairs (x[i], x[i + half]) turned by the angles whose cosines and sines are given. */
WMRT_HIDDEN void wmrt_rotate(float *x, const float *cosines, const float *sines, int half);

#endif
