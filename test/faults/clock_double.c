/*
 * Copyright 2026 The zc_perception authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Licensed under the Apache License, Version 2.0 (the "License");
 * you may not use this file except in compliance with the License.
 * You may obtain a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS,
 * WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
 * See the License for the specific language governing permissions and
 * limitations under the License.
 */
/* The system's clock as a program sees it, set forwards and back without the machine's being touched: LD_PRELOAD this, and write the step in
 * nanoseconds, a signed 64-bit number, into the file that FAULT_CLOCK names. CLOCK_MONOTONIC goes on as it is, as the kernel's does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step_ns;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("FAULT_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof *step_ns, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED)
        step_ns = memory;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!real_gettime)
        begin();
    int result = real_gettime(clock, time);
    if (result || !step_ns || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return result;
    int64_t ns = time->tv_sec * INT64_C(1000000000) + time->tv_nsec + *step_ns;
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}

/* Who waits for a time of day waits by the kernel's clock, which was not set; times of CLOCK_MONOTONIC are small. */
#define A_TIME_OF_DAY 1000000000

static struct timespec kernels(const struct timespec *until)
{
    if (!step_ns || until->tv_sec < A_TIME_OF_DAY)
        return *until;
    int64_t ns = until->tv_sec * INT64_C(1000000000) + until->tv_nsec - *step_ns;
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec time = kernels(until);
    return real(condition, mutex, &time);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    struct timespec time = kernels(until);
    return real(condition, mutex, clock, &time);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec time = kernels(until);
    return real(mutex, &time);
}
