/* Which kernels an instruction set has, and the size of activations prepared for them. */
#include "rows.h"

const wmrt_kernels *wmrt_kernels_of(int isa)
{
    if (!wmrt_isa_usable(isa))
        return NULL;
    switch (isa) {
#if defined(__x86_64__)
    case WMRT_ISA_AVX2:
        return &wmrt_kernels_avx2;
    case WMRT_ISA_AVX512_VNNI:
        return &wmrt_kernels_avx512;
#elif defined(__aarch64__)
    case WMRT_ISA_NEON_DOTPROD:
        return &wmrt_kernels_neon;
#endif
    default:
        return &wmrt_kernels_portable;
    }
}

/* 0 for a pair that no kernel takes. */
size_t wmrt_prepared_bytes(int format, int activation, int k)
{
    if (format < 0 || format >= WMRT_FORMATS || activation < 0 || activation >= WMRT_ACTIVATIONS ||
        k < 1 || !wmrt_kernels_portable.rows[format][activation])
        return 0;
    size_t unit = WMRT_UNIT * sizeof(float);
    if (wmrt_packed(format))
        unit = activation == WMRT_A_INT8_G32 ? sizeof(wmrt_a8_unit) : sizeof(wmrt_a16_unit);
    return unit * (size_t)wmrt_units(k);
}
