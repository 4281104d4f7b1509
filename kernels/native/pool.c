/* Threads that live from create to destroy, run one task together, and wait for each other in it.
 *
 * Inside a task they spin: two barriers a microsecond apart leave no time to sleep. A thread that
 * was waited for in vain for SPINS turns may have lost its core to another process, or share this
 * one; from then on the waiting thread offers its core to the system at every turn.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "kernels.h"

#define LINE 64    /* what is written by different threads lies on different cache lines */
#define SPINS 4096 /* turns before a waiting thread yields: 40 to 150 us by the processor's pause */
#define LOOK 64    /* turns between two looks at the clock */
#define MOST 1024  /* threads of a pool */

typedef struct {
    wmrt_pool *pool;
    pthread_t handle;
    int number;
} worker;

struct wmrt_pool {
    int threads, started;
    int64_t spin_ns;
    pthread_mutex_t calls; /* one task at a time: callers on several threads take turns */
    pthread_mutex_t lock;  /* guards going to sleep */
    pthread_cond_t wake;
    wmrt_task *task;
    void *argument;
    _Alignas(LINE) atomic_uint round;   /* tasks begun */
    _Alignas(LINE) atomic_int sleepers; /* threads that block, or are about to */
    _Alignas(LINE) atomic_int arrived;  /* threads that reached the barrier */
    _Alignas(LINE) atomic_uint passed;  /* barriers that everyone reached */
    _Alignas(LINE) worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void wmrt_pool_barrier(wmrt_pool *pool, int thread)
{
    (void)thread;
    if (pool == NULL || pool->threads == 1)
        return;
    unsigned before = atomic_load_explicit(&pool->passed, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->passed, before + 1, memory_order_release);
        return;
    }
    for (int turn = 0; atomic_load_explicit(&pool->passed, memory_order_acquire) == before;) {
        if (turn < SPINS) {
            turn++;
            relax();
        } else {
            sched_yield();
        }
    }
}

/* Waits until a task after `seen` has begun: spinning at first, then blocked. */
static void await_round(wmrt_pool *pool, unsigned seen)
{
    int64_t until = now() + pool->spin_ns;
    do {
        for (int turn = 0; turn < LOOK; turn++) {
            if (atomic_load_explicit(&pool->round, memory_order_acquire) != seen)
                return;
            relax();
        }
    } while (now() < until);
    pthread_mutex_lock(&pool->lock);
    /* Ordered against `wmrt_pool_run`: either it sees this sleeper, or this sees its round. */
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->round) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *argument)
{
    worker *self = argument;
    wmrt_pool *pool = self->pool;
    for (unsigned seen = 0;; seen++) {
        await_round(pool, seen);
        wmrt_task *task = pool->task;
        if (task == NULL)
            return NULL;
        task(pool->argument, self->number, pool->threads, pool);
        wmrt_pool_barrier(pool, self->number);
    }
}

/* Lets every thread see a new task; NULL ends them. */
static void begin(wmrt_pool *pool, wmrt_task *task, void *argument)
{
    pool->task = task;
    pool->argument = argument;
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void wmrt_pool_run(wmrt_pool *pool, wmrt_task *task, void *argument)
{
    if (pool == NULL) {
        task(argument, 0, 1, NULL);
        return;
    }
    pthread_mutex_lock(&pool->calls);
    if (pool->threads > 1)
        begin(pool, task, argument);
    task(argument, 0, pool->threads, pool);
    wmrt_pool_barrier(pool, 0);
    pthread_mutex_unlock(&pool->calls);
}

/* Starts a thread on processor `cpu`, or on any if that is -1. */
static int start(worker *self, int cpu)
{
    pthread_attr_t attributes;
    if (cpu >= CPU_SETSIZE || pthread_attr_init(&attributes) != 0)
        return WMRT_E_THREAD;
    int failed = 0;
    if (cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        failed = pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
    }
    failed = failed || pthread_create(&self->handle, &attributes, work, self);
    pthread_attr_destroy(&attributes);
    return failed ? WMRT_E_THREAD : 0;
}

static int start_all(wmrt_pool *pool, const int *cpus)
{
    sigset_t all, before;
    sigfillset(&all); /* signals are the caller's: its threads inherit that none reaches them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 1; i < pool->threads && !error; i++) {
        pool->workers[i] = (worker){.pool = pool, .number = i};
        error = start(&pool->workers[i], cpus == NULL ? -1 : cpus[i]);
        pool->started += !error;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

wmrt_pool *wmrt_pool_create(int threads, const int *cpus, int64_t spin_ns)
{
    if (threads < 1 || threads > MOST || spin_ns < 0)
        return NULL;
    size_t size = sizeof(wmrt_pool) + (size_t)threads * sizeof(worker);
    wmrt_pool *pool = aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE);
    if (pool == NULL)
        return NULL;
    *pool = (wmrt_pool){.threads = threads, .spin_ns = spin_ns};
    pthread_mutex_init(&pool->calls, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    if (start_all(pool, cpus) != 0) {
        wmrt_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void wmrt_pool_destroy(wmrt_pool *pool)
{
    if (pool == NULL)
        return;
    begin(pool, NULL, NULL);
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].handle, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->calls);
    free(pool);
}

int wmrt_pool_threads(const wmrt_pool *pool)
{
    return pool == NULL ? 1 : pool->threads;
}
