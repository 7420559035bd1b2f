/* Steps the wall clock of the processes that preload this, and of no others.
 *
 * STEPPED_CLOCK names a file of eight bytes: how many seconds ahead (or behind) the clock is, as a
 * signed integer of this machine. It is mapped, so that all processes see a step at once.
 *
 * Only what tells the time of day is changed. Clocks that cannot step are left as they are, and so
 * is every wait: libfaketime, which changes those too, lets the timed waits of Python's interpreter
 * lock end at once, and two threads then need 18 times as long. A wait until a time of day
 * (pthread_cond_timedwait without CLOCK_MONOTONIC) would therefore be wrong under a step; neither
 * Python nor Redis has one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;
static int (*true_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_step(void)
{
    const char *path = getenv("STEPPED_CLOCK");
    void *page = MAP_FAILED;

    if (!path)
        return; /* a program whose environment was cleaned: it keeps the true clock */
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    if (page == MAP_FAILED) {
        fprintf(stderr, "stepped_clock: STEPPED_CLOCK must name a file of eight bytes\n");
        abort();
    }
    ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!true_clock_gettime) /* others' constructors may ask for the time before ours ran */
        *(void **)&true_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = true_clock_gettime(clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec exact;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec exact;

    if (clock_gettime(CLOCK_REALTIME_COARSE, &exact))
        return (time_t)-1;
    if (result)
        *result = exact.tv_sec;
    return exact.tv_sec;
}
