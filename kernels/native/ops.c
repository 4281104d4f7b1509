/* See ops.h. Sums run in 16 lanes that are folded at the end, which compilers can vectorise without
 * changing the order.
 */
#include "ops.h"

#include <math.h>

#define LANES 16
#define RMS_EPS 1e-5f
#define LAYER_NORM_EPS 1e-5f
#define RADIUS 2 /* bins on each side of the mode */

static float folded(float *lane)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

float wmrt_dot(const float *a, const float *b, int n)
{
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (int l = 0; i + l < n; l++)
        lane[l] += a[i + l] * b[i + l];
    return folded(lane);
}

void wmrt_add_scaled(float *y, float scale, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] += scale * x[i];
}

float wmrt_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

float wmrt_log_sigmoid(float x)
{
    return (x < 0.0f || x != x ? x : 0.0f) - log1pf(expf(-fabsf(x)));
}

/* e^x to 2 ulp, without branches: x = n ln 2 + r, |r| <= 0.35, Taylor's series in r to the seventh
 * power (the next term is below 2^-27), and two factors of 2^(n / 2), for the ends of the range. */
static inline float fast_exp(float x)
{
    x = x > 89.0f ? 89.0f : x; /* overflows to infinity */
    x = x < -104.0f ? -104.0f : x;
    const float shift = 12582912.0f; /* 1.5 x 2^23: adding it rounds to an integer */
    float shifted = x * 1.44269504f + shift, n = shifted - shift;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* the first product is exact */
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    int32_t exponent = (int32_t)(bits - 0x4B400000u), half = exponent >> 1;
    uint32_t first = (uint32_t)(half + 127) << 23, second = (uint32_t)(exponent - half + 127) << 23;
    float a, b;
    memcpy(&a, &first, sizeof a);
    memcpy(&b, &second, sizeof b);
    return p * a * b;
}

void wmrt_swiglu(const float *gate, const float *up, int n, float *y)
{
    for (int i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i];
}

void wmrt_gelu(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] * 0.5f * (1.0f + erff(x[i] * 0.70710678f));
}

float wmrt_rms_scale(const float *x, int n)
{
    return 1.0f / sqrtf(wmrt_dot(x, x, n) / (float)n + RMS_EPS);
}

void wmrt_layer_norm(const float *x, const float *weight, const float *bias, int n, float *y)
{
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < n; i++)
        sum += x[i];
    float mean = sum / (float)n;
    for (int i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(squares / (float)n + LAYER_NORM_EPS);
    for (int i = 0; i < n; i++)
        y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void wmrt_softmax(float *x, int n)
{
    float most = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++) {
        x[i] = fast_exp(x[i] - most);
        sum += x[i];
    }
    for (int i = 0; i < n; i++)
        x[i] /= sum;
}

int wmrt_argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n && x[best] == x[best]; i++)
        if (x[i] > x[best] || x[i] != x[i])
            best = i;
    return best;
}

float wmrt_decode_mode(const float *logits, const float *centers, int bins)
{
    int mode = wmrt_argmax(logits, bins);
    int begin = mode > RADIUS ? mode - RADIUS : 0;
    int end = mode + RADIUS + 1 < bins ? mode + RADIUS + 1 : bins;
    float near[2 * RADIUS + 1], sum = 0.0f;
    memcpy(near, logits + begin, (size_t)(end - begin) * sizeof *near);
    wmrt_softmax(near, end - begin);
    for (int i = begin; i < end; i++)
        sum += near[i - begin] * centers[i];
    return sum;
}

void wmrt_rotate(float *x, const float *cosines, const float *sines, int half)
{
    for (int i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cosines[i] - second * sines[i];
        x[i + half] = first * sines[i] + second * cosines[i];
    }
}
