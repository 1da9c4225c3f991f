/* What the text of a HIP kernel of poot-rocm-device means on a processor, compiled with POOT_HOST defined.

Groups run one after another. The threads of a group run one after another too, each on a stack of its own where the
kernel has barriers or operations of a wave: there a thread stops until the others have come. Threads that stop at
different places are an error, since a GPU would hang or read registers that were never set.

The library has `poot_run`, which runs a grid, and `poot_stop`, which ends it from another thread at the next group, or
round of a loop without bounds. */

#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define POOT_INLINE [[maybe_unused]] static inline
#define POOT_KERNEL(threads, together, shared_bytes) \
    static constexpr unsigned poot_threads = threads, poot_shared_words = shared_bytes / 4; \
    static constexpr bool poot_together = together; \
    static void
#define POOT_SHARED(type, name, count, offset) type *const name = (type *)(poot_host::shared + offset)
#define POOT_ROUND() poot_host::round<poot_together>();
#define poot_fail(fault, word) (*(fault) = (word), poot_host::leave<poot_together>(POOT_TRAPPED))

/* How a grid ended. */
enum poot_outcome { POOT_DONE = 0, POOT_TRAPPED = 1, POOT_DIVERGED = 2, POOT_STOPPED = 3, POOT_REFUSED = 4 };

template <class To, class From> POOT_INLINE To poot_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    return __builtin_bit_cast(To, value);
}

namespace poot_host {

constexpr unsigned POISON = 0x7FD5A5A5u, STACK = 256u << 10, SHARED = 64u << 10, MOST = 1024;
enum State { READY, AT_WAVE, AT_BARRIER, DONE };

/* A thread of the group: where its stack is, why it stopped, and at which line of the kernel. */
struct Thread {
#if defined(__x86_64__)
    void *stack;
#else
    ucontext_t context;
#endif
    State state;
    int site;
    unsigned turn;
};

/* What the lanes of a wave show each other: in two turns, since one lane may be at the next while another still reads. */
struct Wave {
    unsigned shown[2][POOT_WAVE];
};

static volatile int stopping;
alignas(16) static thread_local unsigned char shared[SHARED];
static thread_local Thread threads[MOST];
static thread_local Wave waves[MOST / POOT_WAVE];
static thread_local Thread *current;
static thread_local unsigned count, here, group[3];
static thread_local int outcome;
static thread_local char *stacks;
static thread_local jmp_buf way_out;
static thread_local const void *arguments;

#if defined(__x86_64__)
static thread_local void *scheduler;
__attribute__((naked, noinline)) static void change(void **, void *) {
    __asm__("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
            "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
            "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tretq");
}
static void to_scheduler() { change(&current->stack, scheduler); }
static void to_thread(Thread &thread) { change(&scheduler, thread.stack); }
static void begin(Thread &thread, char *top, void (*entry)()) {
    void **frame = (void **)top;
    *--frame = nullptr;
    *--frame = (void *)entry;
    for (int saved = 0; saved < 6; ++saved) *--frame = nullptr;
    thread.stack = frame;
}
#else
static thread_local ucontext_t scheduler;
static void to_scheduler() { swapcontext(&current->context, &scheduler); }
static void to_thread(Thread &thread) { swapcontext(&scheduler, &thread.context); }
static void begin(Thread &thread, char *top, void (*entry)()) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = top - STACK;
    thread.context.uc_stack.ss_size = STACK;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, entry, 0);
}
#endif

/* Ends the grid; who calls this does not come back. */
template <bool together> [[noreturn]] static void leave(int how) {
    outcome = how;
    if (!together) longjmp(way_out, 1);
    to_scheduler();
    __builtin_unreachable();
}

static void wait(State state, int site) {
    current->state = state;
    current->site = site;
    to_scheduler();
}

/* Runs each ready thread until it stops. False where one ended the grid. */
static bool advance(unsigned first, unsigned end) {
    for (unsigned k = first; k < end; ++k) {
        if (threads[k].state != READY) continue;
        current = &threads[k];
        here = k;
        to_thread(threads[k]);
        if (outcome != POOT_DONE) return false;
    }
    return true;
}

/* Lets threads go on that have all come to one place. False where some are elsewhere. */
static bool release(State state, unsigned first, unsigned end) {
    for (unsigned k = first; k < end; ++k)
        if (threads[k].state != state || threads[k].site != threads[first].site) return false;
    for (unsigned k = first; k < end; ++k) threads[k].state = READY;
    return true;
}

static bool any(State state, unsigned first, unsigned end) {
    for (unsigned k = first; k < end; ++k)
        if (threads[k].state == state) return true;
    return false;
}

static void run_together(void (*entry)()) {
    for (unsigned k = 0; k < count; ++k) {
        threads[k].state = READY;
        threads[k].turn = 0;
        begin(threads[k], stacks + (size_t)STACK * (k + 1), entry);
    }
    for (;;) {
        for (unsigned first = 0; first < count; first += POOT_WAVE) {
            const unsigned end = first + POOT_WAVE < count ? first + POOT_WAVE : count;
            for (;;) {
                if (!advance(first, end)) return;
                if (!any(AT_WAVE, first, end)) break;
                if (!release(AT_WAVE, first, end)) {
                    outcome = POOT_DIVERGED;
                    return;
                }
            }
        }
        if (!any(AT_BARRIER, 0, count)) return;
        if (!release(AT_BARRIER, 0, count)) {
            outcome = POOT_DIVERGED;
            return;
        }
    }
}

/* Each group over shared memory that holds a pattern: a kernel that relies on what was there shows it. */
static void run_group(unsigned shared_words, bool together, void (*body)(), void (*entry)()) {
    for (unsigned word = 0; word < shared_words; ++word) ((unsigned *)shared)[word] = POISON;
    if (together) {
        run_together(entry);
    } else if (setjmp(way_out) == 0) {
        for (here = 0; here < count; ++here) body();
    }
}

static int run(const void *kernarg, const unsigned (&groups)[3], unsigned shared_words, bool together, void (*body)(),
               void (*entry)()) {
    arguments = kernarg;
    outcome = POOT_DONE;
    if (together && stacks == nullptr) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *made = mmap(nullptr, (size_t)STACK * count, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (made == MAP_FAILED) return POOT_REFUSED;
        stacks = (char *)made;
    }
    for (group[2] = 0; group[2] < groups[2]; ++group[2])
        for (group[1] = 0; group[1] < groups[1]; ++group[1])
            for (group[0] = 0; group[0] < groups[0]; ++group[0]) {
                if (stopping) return POOT_STOPPED;
                run_group(shared_words, together, body, entry);
                if (outcome != POOT_DONE) return outcome;
            }
    return POOT_DONE;
}

/* Arguments lie in memory as the members of a C structure do. */
template <class T> static T take(const char *&at) {
    const uintptr_t aligned = ((uintptr_t)at + alignof(T) - 1) & ~(uintptr_t)(alignof(T) - 1);
    T value;
    memcpy(&value, (const void *)aligned, sizeof value);
    at = (const char *)aligned + sizeof value;
    return value;
}
template <class... Left> struct Call;
template <> struct Call<> {
    template <class Kernel, class... Taken> static void now(Kernel kernel, const char *, Taken... taken) {
        kernel(taken...);
    }
};
template <class First, class... Left> struct Call<First, Left...> {
    template <class Kernel, class... Taken> static void now(Kernel kernel, const char *at, Taken... taken) {
        const First first = take<First>(at);
        Call<Left...>::now(kernel, at, taken..., first);
    }
};
template <class... Parameters> static inline void call(void (*kernel)(Parameters...)) {
    Call<Parameters...>::now(kernel, (const char *)arguments);
}

template <bool together> static inline void round() {
    if (stopping) leave<together>(POOT_STOPPED);
}

/* What every lane of the wave shows. */
static const unsigned *show(unsigned bits, int site) {
    Wave &wave = waves[here / POOT_WAVE];
    const unsigned turn = current->turn ^= 1, lane = here % POOT_WAVE;
    wave.shown[turn][lane] = bits;
    wait(AT_WAVE, site);
    return wave.shown[turn];
}

/* Lanes of the wave that this thread is in. */
static inline unsigned lanes() {
    const unsigned first = here / POOT_WAVE * POOT_WAVE;
    return count - first < POOT_WAVE ? count - first : POOT_WAVE;
}

}  // namespace poot_host

POOT_INLINE int poot_thread() { return (int)poot_host::here; }
template <int axis> POOT_INLINE int poot_group() { return (int)poot_host::group[axis]; }
POOT_INLINE void poot_barrier(int site = __builtin_LINE()) { poot_host::wait(poot_host::AT_BARRIER, site); }

template <class T> POOT_INLINE T poot_shuffle(T value, int lane, int site = __builtin_LINE()) {
    const unsigned *shown = poot_host::show(poot_bits<unsigned>(value), site);
    return poot_bits<T>((unsigned)lane < poot_host::lanes() ? shown[lane] : poot_host::POISON);
}
template <class T> POOT_INLINE T poot_broadcast(T value, int lane, int site = __builtin_LINE()) {
    return poot_shuffle(value, lane, site);
}
template <int mask, class T> POOT_INLINE T poot_shuffle_xor(T value, int site = __builtin_LINE()) {
    return poot_shuffle(value, (int)(poot_host::here % POOT_WAVE) ^ mask, site);
}

/* Pairs, then pairs of pairs: the order of the device's own steps, and so the same bits. */
template <class Join, int size, class T> POOT_INLINE T poot_reduce(T value, int site = __builtin_LINE()) {
    const unsigned *shown = poot_host::show(poot_bits<unsigned>(value), site);
    T joined[size];
    for (int k = 0; k < size; ++k) joined[k] = poot_bits<T>(shown[k]);
    for (int step = 1; step < size; step *= 2)
        for (int k = 0; k < size; k += 2 * step) joined[k] = Join::of(joined[k], joined[k + step]);
    return joined[0];
}
template <class Join, class T> POOT_INLINE T poot_reduce_some(T value, int lanes, int site = __builtin_LINE()) {
    const unsigned *shown = poot_host::show(poot_bits<unsigned>(value), site);
    T joined = poot_bits<T>(shown[0]);
    for (int lane = 1; lane < lanes; ++lane) joined = Join::of(joined, poot_bits<T>(shown[lane]));
    return joined;
}

template <class T> POOT_INLINE T poot_atomic_add(T *at, T value) {
    const T old = *at;
    *at = old + value;
    return old;
}
template <class T> POOT_INLINE T poot_atomic_min(T *at, T value) {
    const T old = *at;
    *at = value < old ? value : old;
    return old;
}
template <class T> POOT_INLINE T poot_atomic_max(T *at, T value) {
    const T old = *at;
    *at = old < value ? value : old;
    return old;
}
template <class T> POOT_INLINE T poot_atomic_or(T *at, T value) {
    const T old = *at;
    *at = old | value;
    return old;
}

POOT_INLINE float poot_sqrt(float value) { return __builtin_sqrtf(value); }
POOT_INLINE int poot_dot4(unsigned a, unsigned b, int c) {
    for (int shift = 0; shift < 32; shift += 8) c += (int)(signed char)(a >> shift) * (int)(signed char)(b >> shift);
    return c;
}

/* Matrix fragments are a wave's: here its first lane has all of them, and the others have nothing. What a fragment is
loaded from was written before a barrier, and so it does not matter when that lane comes by. */
struct poot_halves {
    unsigned words[16 * 8];
};
struct poot_bytes {
    unsigned words[16 * 8];
};
struct poot_sum_f32 {
    float values[16 * 16];
};
struct poot_sum_i32 {
    int values[16 * 16];
};
namespace poot_host {
static inline bool leads() { return here % POOT_WAVE == 0; }
/* A factor's lines have room for the deepest one; of another's the rest is 0. */
template <class Factor, int per, int depth, int stride> static Factor lines(const unsigned *at) {
    Factor found = {};
    if (leads())
        for (int line = 0; line < 16; ++line) memcpy(found.words + line * 8, at + line * stride, 4 * depth / per);
    return found;
}
template <class Factor, int per, int depth, int stride> static Factor across(const unsigned *at) {
    constexpr unsigned bits = 32 / per, mask = (1u << bits) - 1;
    Factor found = {};
    if (leads())
        for (int line = 0; line < 16; ++line)
            for (int k = 0; k < depth; ++k) {
                const unsigned element = at[k * stride + line / per] >> bits * (line % per) & mask;
                found.words[line * 8 + k / per] |= element << bits * (k % per);
            }
    return found;
}
template <class Sum, int stride, bool rows, class T> static Sum load(const T *at) {
    Sum found = {};
    if (leads())
        for (int place = 0; place < 256; ++place)
            found.values[place] = at[rows ? place / 16 * stride + place % 16 : place % 16 * stride + place / 16];
    return found;
}
template <int stride, bool rows, class Sum, class T> static void store(T *at, const Sum &value) {
    if (leads())
        for (int place = 0; place < 256; ++place)
            at[rows ? place / 16 * stride + place % 16 : place % 16 * stride + place / 16] = value.values[place];
}
template <bool brain> static inline double half(const poot_halves &factor, int line, int place) {
    const unsigned bits = factor.words[line * 8 + place / 2] >> 16 * (place % 2) & 0xffffu;
    return brain ? (double)poot_bits<float>(bits << 16) : (double)poot_bits<_Float16>((unsigned short)bits);
}
static inline int byte(const poot_bytes &factor, int line, int place) {
    return (signed char)(factor.words[line * 8 + place / 4] >> 8 * (place % 4));
}
/* Summed widely and rounded once, as the interpreter of kernel IR does. */
template <bool brain> static poot_sum_f32 product(const poot_halves &a, const poot_halves &b, poot_sum_f32 c) {
    if (leads())
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < 16; ++column) {
                double total = 0;
                for (int k = 0; k < 16; ++k) total += half<brain>(a, row, k) * half<brain>(b, column, k);
                c.values[row * 16 + column] = (float)(total + c.values[row * 16 + column]);
            }
    return c;
}
}  // namespace poot_host
#define POOT_FACTOR(kind, per) \
    template <int depth, int stride> static poot_##kind poot_load_lines_##kind(const unsigned *at) { \
        return poot_host::lines<poot_##kind, per, depth, stride>(at); \
    } \
    template <int depth, int stride> static poot_##kind poot_load_across_##kind(const unsigned *at) { \
        return poot_host::across<poot_##kind, per, depth, stride>(at); \
    }
POOT_FACTOR(halves, 2)
POOT_FACTOR(bytes, 4)
#define POOT_SUM(name, type) \
    POOT_INLINE poot_sum_##name poot_zero_##name() { return {}; } \
    template <int stride, bool rows> static poot_sum_##name poot_load_sum_##name(const type *at) { \
        return poot_host::load<poot_sum_##name, stride, rows>(at); \
    } \
    template <int stride, bool rows> static void poot_store_sum_##name(type *at, const poot_sum_##name &value) { \
        poot_host::store<stride, rows>(at, value); \
    }
POOT_SUM(f32, float)
POOT_SUM(i32, int)
POOT_INLINE poot_sum_f32 poot_mma_f16(const poot_halves &a, const poot_halves &b, const poot_sum_f32 &c) {
    return poot_host::product<false>(a, b, c);
}
POOT_INLINE poot_sum_f32 poot_mma_bf16(const poot_halves &a, const poot_halves &b, const poot_sum_f32 &c) {
    return poot_host::product<true>(a, b, c);
}
POOT_INLINE poot_sum_i32 poot_mma_i8(const poot_bytes &a, const poot_bytes &b, poot_sum_i32 c) {
    if (poot_host::leads())
        for (int place = 0; place < 256; ++place)
            for (int k = 0; k < 32; ++k)
                c.values[place] += poot_host::byte(a, place / 16, k) * poot_host::byte(b, place % 16, k);
    return c;
}
POOT_INLINE poot_sum_f32 poot_fma_f32(const poot_sum_f32 &a, const poot_sum_f32 &b, poot_sum_f32 c) {
    for (int place = 0; place < 256; ++place)
        c.values[place] = __builtin_fmaf(a.values[place], b.values[place], c.values[place]);
    return c;
}
POOT_INLINE poot_sum_i32 poot_fma_i32(const poot_sum_i32 &a, const poot_sum_i32 &b, poot_sum_i32 c) {
    for (int place = 0; place < 256; ++place) c.values[place] += a.values[place] * b.values[place];
    return c;
}

/* Follows the text: a kernel's library. */
#define POOT_ENTRY(kernel) \
    POOT_INLINE void poot_body() { poot_host::call(kernel); } \
    [[noreturn]] static void poot_begin() { \
        poot_body(); \
        poot_host::current->state = poot_host::DONE; \
        poot_host::to_scheduler(); \
        __builtin_unreachable(); \
    } \
    extern "C" __attribute__((visibility("default"))) int32_t poot_run( \
        const void *kernarg, uint32_t groups_x, uint32_t groups_y, uint32_t groups_z, uint32_t threads) { \
        if (threads != poot_threads || threads > poot_host::MOST) return POOT_REFUSED; \
        poot_host::count = threads; \
        return poot_host::run(kernarg, {groups_x, groups_y, groups_z}, poot_shared_words, poot_together, poot_body, \
                              poot_begin); \
    } \
    extern "C" __attribute__((visibility("default"))) void poot_stop() { poot_host::stopping = 1; }
