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
/* A camera without a driver: the program draws a moving bar into memfds and publishes them on a topic.
 *
 *     moving_bar TOPIC [WIDTH HEIGHT [RATE [FRAMES [BUFFERS]]]]
 *
 * A program for a real camera passes its driver's dma-bufs to zc_publisher_set_buffers(), and dequeues a full buffer instead of
 * drawing. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zc_client/zc_publisher.h"

enum { MOST_BUFFERS = 64, MOST_CONSUMERS = 16 };
static volatile sig_atomic_t stopped;
static void stop(int number) {
    (void)number;
    stopped = 1;
}
static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static int failed(void) {
    fprintf(stderr, "moving_bar: %s\n", zc_error());
    return 1;
}
static int linear(zc_image *image, uint32_t width, uint32_t height, uint32_t stride_align, uint32_t offset_align) {
    const int error = zc_image_linear(image, ZC_FOURCC('N', 'V', '1', '2'), width, height, stride_align, offset_align);
    image->kind = ZC_MEMFD, image->matrix = ZC_BT709, image->range = ZC_LIMITED, image->transfer = ZC_TRANSFER_BT709;
    return error;
}
/* Choose the first layout that suits all connected consumers: strides aligned to 1 to 256 bytes, planes to 1 to 4096 bytes. If none does, choose
 * the layout without alignment. */
static int choose(zc_publisher *camera, uint32_t width, uint32_t height, zc_image *image) {
    static const uint32_t STRIDES[] = {1, 16, 64, 128, 256}, OFFSETS[] = {1, 64, 4096};
    static zc_consumer consumers[MOST_CONSUMERS];
    const size_t count = zc_publisher_consumers(camera, consumers, MOST_CONSUMERS);
    for (size_t s = 0; s < sizeof STRIDES / sizeof *STRIDES; s++)
        for (size_t o = 0; o < sizeof OFFSETS / sizeof *OFFSETS; o++) {
            bool all = true;
            if (linear(image, width, height, STRIDES[s], OFFSETS[o]) != 0) return -1;
            for (size_t i = 0; i < count && i < MOST_CONSUMERS; i++) all = all && zc_consumer_takes(&consumers[i], image, "memfd", NULL, 0);
            if (all) return 0;
        }
    return linear(image, width, height, 1, 1);
}
static void draw(const zc_image *image, uint8_t *memory, uint64_t number) {
    const uint32_t bar = (uint32_t)(number * 4 % image->width);
    for (uint32_t y = 0; y < image->height; y++) {
        uint8_t *row = memory + image->planes[0].offset + (size_t)y * image->planes[0].stride;
        memset(row, 60, image->width);
        memset(row + bar, 200, image->width - bar < 16 ? image->width - bar : 16);
    }
    for (uint32_t y = 0; y < image->height / 2; y++)
        memset(memory + image->planes[1].offset + (size_t)y * image->planes[1].stride, 128, image->width);
}

int main(int count, char **words) {
    const uint32_t width = count > 3 ? (uint32_t)atoi(words[2]) : 640, height = count > 3 ? (uint32_t)atoi(words[3]) : 360;
    const double rate = count > 4 ? atof(words[4]) : 30;
    const unsigned long frames = count > 5 ? strtoul(words[5], NULL, 10) : 0;
    const size_t buffers = count > 6 ? strtoul(words[6], NULL, 10) : 8;
    if (count < 2 || width % 2 != 0 || height % 2 != 0 || width < 16 || height < 2 || rate <= 0 || buffers > MOST_BUFFERS)
        return fprintf(stderr, "usage: moving_bar TOPIC [WIDTH HEIGHT [RATE [FRAMES [BUFFERS]]]]; even sizes from 16x2, at most 64 buffers\n"), 2;
    static zc_image images[MOST_BUFFERS];
    void *memory[MOST_BUFFERS];
    zc_publisher *camera;
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    const zc_format possible = {ZC_FOURCC('N', 'V', '1', '2'), ZC_LINEAR};
    if (zc_publisher_open(&(zc_publisher_options){.topic = words[1], .heap = "memfd", .possible = &possible, .num_possible = 1}, &camera) != 0)
        return failed();
    for (int64_t until = clock_ns(CLOCK_MONOTONIC) + 300000000; clock_ns(CLOCK_MONOTONIC) < until;) /* learn consumers' needs before allocating */
        zc_publisher_step(camera, 20);
    if (choose(camera, width, height, &images[0]) != 0) return failed();
    for (size_t i = 0; i < buffers; i++) {
        images[i] = images[0];
        images[i].fds[0] = zc_memfd("moving_bar", images[0].buffer_size[0], &memory[i]);
        if (images[i].fds[0] < 0) return failed();
    }
    if (zc_publisher_set_buffers(camera, images, buffers) != 0) return failed();
    printf("%s\n", zc_publisher_announcement(camera));
    fflush(stdout);
    uint64_t number = 0, lost = 0;
    for (int64_t due = clock_ns(CLOCK_MONOTONIC); !stopped && (frames == 0 || number < frames); due += (int64_t)(1e9 / rate)) {
        for (int64_t left; !stopped && (left = due - clock_ns(CLOCK_MONOTONIC)) > 0;)
            if (zc_publisher_step(camera, (int)(left / 1000000) + 1) != 0 && errno != EINTR) return failed();
        zc_publisher_step(camera, 0);
        const int slot = zc_publisher_free_slot(camera);
        number++;
        if (slot < 0) {
            lost++;
            continue;
        }
        draw(&images[0], memory[slot], number);
        const zc_frame_info about = {.sequence = number, .stamp_ns = clock_ns(CLOCK_REALTIME), .frame_id = "camera_optical_frame"};
        if (zc_publisher_publish(camera, (unsigned)slot, &about, -1) < 0) return failed();
    }
    fprintf(stderr, "moving_bar: %ju frames, %ju had no free slot\n", (uintmax_t)number, (uintmax_t)lost);
    zc_publisher_close(camera);
    return 0;
}
