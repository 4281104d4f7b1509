/* Waits for a descriptor, at first without sleeping: a thread that sleeps is woken 50 us later. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "wmrt.h"

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int wmrt_wait(int first, int second, int64_t spin_ns)
{
    struct pollfd files[2] = {{.fd = first, .events = POLLIN}, {.fd = second, .events = POLLIN}};
    int64_t until = spin_ns > 0 ? now() + spin_ns : 0;
    int found = 0;
    while (!found && spin_ns > 0 && now() < until)
        found = poll(files, 2, 0);
    if (!found)
        found = poll(files, 2, -1);
    if (found < 0)
        return errno == EINTR ? 0 : WMRT_E_ARGUMENT;
    return (files[0].revents != 0) | (files[1].revents != 0) << 1;
}
