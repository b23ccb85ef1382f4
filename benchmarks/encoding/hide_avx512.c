/* Answer replaced `cpuid` instructions (ud2 in their place) as a processor without AVX-512, VNNI and AMX; see avx2.py. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned a, b, c, d, leaf = registers[REG_RAX], part = registers[REG_RCX];
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 7 && part == 0) {
        b &= ~0xDC230000u; /* AVX512F, DQ, IFMA, PF, ER, CD, BW, VL */
        c &= ~0x00005842u; /* AVX512_VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
        d &= ~0x03C0010Cu; /* AVX512_4VNNIW, 4FMAPS, VP2INTERSECT, FP16; AMX_BF16, TILE, INT8 */
    }
    if (leaf == 7 && part == 1)
        a = d = 0; /* AVX_VNNI, AVX512_BF16 and later ones */
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, 0);
}
