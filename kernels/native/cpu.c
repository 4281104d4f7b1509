/* Which instruction sets this processor has. */
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

static int has_f16c(void) /* clang's __builtin_cpu_supports does not know the name */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

int wmrt_abi(void)
{
    return WMRT_ABI;
}

int wmrt_isa_usable(int isa)
{
    switch (isa) {
    case WMRT_ISA_PORTABLE:
        return 1;
#if defined(__x86_64__)
    case WMRT_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               has_f16c();
    case WMRT_ISA_AVX512_VNNI:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    case WMRT_ISA_NEON_DOTPROD:
        return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    default:
        return 0;
    }
}

int wmrt_isa_best(void)
{
    static const int order[] = {WMRT_ISA_AVX512_VNNI, WMRT_ISA_NEON_DOTPROD, WMRT_ISA_AVX2};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (wmrt_isa_usable(order[i]))
            return order[i];
    return WMRT_ISA_PORTABLE;
}

const char *wmrt_isa_name(int isa)
{
    static const char *const names[WMRT_ISAS] = {"portable", "avx2", "avx512-vnni", "neon-dotprod"};
    return isa >= 0 && isa < WMRT_ISAS ? names[isa] : NULL;
}
