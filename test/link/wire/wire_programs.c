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
/* Programs on top of client/, each for one test of test_wire.py: the first word is the program's name. */
#define _GNU_SOURCE
#include <linux/sync_file.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "zc_client/zc_publisher.h"

static zc_publisher *camera;
static zc_client *client;
static const uint32_t NV12 = ZC_FOURCC('N', 'V', '1', '2');

/* Linked with --wrap=ioctl: a real sync_file needs a driver, so an eventfd stands for one. */
int __wrap_ioctl(int fd, unsigned long request, struct sync_file_info *info);
int __wrap_ioctl(int fd, unsigned long request, struct sync_file_info *info) {
    struct pollfd fence = {.fd = fd, .events = POLLIN};
    if (request != SYNC_IOC_FILE_INFO) return -1;
    info->status = poll(&fence, 1, 0);
    return 0;
}
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}
static int say_number(int number) {
    printf("%d\n", number);
    return fflush(stdout);
}
static void fail(void) {
    puts(zc_error());
    exit(1);
}
static void open_camera(void) {
    const zc_publisher_options options = {.topic = "/image_raw", .heap = "memfd"};
    if (zc_publisher_open(&options, &camera) != 0) fail();
}
static zc_image new_image(void) {
    zc_image image;
    void *memory;
    if (zc_image_linear(&image, NV12, 64, 48, 1, 1) != 0) fail();
    image.kind = ZC_MEMFD, image.matrix = ZC_BT709, image.range = ZC_LIMITED, image.transfer = ZC_TRANSFER_BT709;
    if ((image.fds[0] = zc_memfd("program", image.buffer_size[0], &memory)) < 0) fail();
    return image;
}
/* Give the camera so many buffers, which are one, because nothing is published; print its error or "taken". */
static void set_buffers(zc_image image, size_t count) {
    zc_image images[16];
    for (size_t i = 0; i < count; i++) images[i] = image;
    puts(zc_publisher_set_buffers(camera, images, count) != 0 ? zc_error() : "taken");
}

static bool connected(int wait_ms) {
    zc_status now;
    zc_frame *frame;
    zc_client_next(client, wait_ms, &frame);
    zc_client_status(client, &now);
    return now.state == ZC_CONNECTED;
}
/* Fork while it is connected to the socket. Print how often its descriptor was readable in the half second after the
 * camera's end, while the child still has the connection. */
static int forker(int count, char **words) {
    zc_client_options options = {.socket = words[count - 1]};
    int events = 0;
    if (zc_client_open(&options, &client) != 0) fail();
    while (!connected(10)) continue;
    if (fork() == 0) _exit(getchar() != EOF);
    puts("forked");
    fflush(stdout);
    while (connected(10)) continue;
    for (const double end = seconds() + 0.5; seconds() < end; connected(0)) {
        struct pollfd readable = {.fd = zc_client_fd(client), .events = POLLIN};
        events += poll(&readable, 1, 50);
    }
    return say_number(events);
}
/* Call zc_client_next() in a loop of its own, a millisecond apart, 400 times and until stdin ends. */
static int poller(int count, char **words) {
    zc_client_options options = {.topic = words[count - 1]};
    struct pollfd input = {.fd = 0, .events = POLLIN};
    zc_frame *frame;
    if (zc_client_open(&options, &client) != 0) fail();
    for (int i = 0; i < 400 || poll(&input, 1, 0) == 0; i++) {
        if (zc_client_next(client, 0, &frame) != 0) fail();
        poll(NULL, 0, 1);
    }
    return 0;
}
/* Pass each line of stdin to zc_client_announce(); end with the input. */
static int told(int count, char **words) {
    zc_client_options options = {.topic = words[count - 1]};
    char line[4096];
    zc_frame *frame;
    setvbuf(stdin, NULL, _IONBF, 0); /* poll() must see the lines that wait */
    if (zc_client_open(&options, &client) != 0) fail();
    for (;;) {
        struct pollfd ready[2] = {{.fd = 0, .events = POLLIN}, {.fd = zc_client_fd(client), .events = POLLIN}};
        poll(ready, 2, -1);
        if (ready[0].revents != 0) {
            if (fgets(line, sizeof line, stdin) == NULL) return 0;
            if (zc_client_announce(client, line) != 0) fail();
        }
        if (zc_client_next(client, 0, &frame) != 0) fail();
    }
}
/* Change the buffers to each number of them that the words say. */
static int resizer(int count, char **words) {
    open_camera();
    for (int i = 0; i < count; i++) set_buffers(new_image(), (size_t)atoi(words[i]));
    return 0;
}
/* Publish a frame with each stamp that the words say, or captured at the time after a "c"; print "sent" or the error. */
static int stamper(int count, char **words) {
    open_camera();
    set_buffers(new_image(), 8);
    for (int i = 0; i < count; i++) {
        const int slot = zc_publisher_free_slot(camera);
        const bool captured = words[i][0] == 'c';
        const int64_t time = strtoll(words[i] + captured, NULL, 10);
        const zc_frame_info about = {.sequence = (uint64_t)i, .stamp_ns = captured ? 0 : time, .captured_ns = captured ? time : 0};
        const int sent = zc_publisher_publish(camera, (unsigned)slot, &about, -1);
        puts(sent < 0 ? zc_error() : "sent");
    }
    return 0;
}
/* Let two clients wait for buffers, of which there are enough for one; print the names of those that are served. */
static int line(int count, char **words) {
    zc_client *clients[2];
    zc_consumer list[2];
    zc_frame *frame;
    open_camera();
    for (size_t i = 0; i < 2; i++) {
        const zc_client_options options = {.topic = words[count - 1], .name = i == 0 ? "first" : "second"};
        if (zc_client_open(&options, &clients[i]) != 0) fail();
        while (zc_publisher_consumers(camera, list, 2) <= i) {
            zc_client_next(clients[i], 0, &frame);
            zc_publisher_step(camera, 10);
        }
    }
    set_buffers(new_image(), 4);
    const size_t there = zc_publisher_consumers(camera, list, 2);
    for (size_t i = 0; i < there; i++)
        if (list[i].served) puts(list[i].name);
    for (size_t i = 0; i < 2; i++) zc_client_close(clients[i]);
    return 0;
}
/* Leave out one field of the images each time, or give them too many buffers. */
static int forgetful(int count, char **words) {
    open_camera();
    for (int i = 0; i < 5; i++) {
        zc_image image = new_image();
        if (i == 0) image.kind = 0;
        if (i == 1) image.matrix = 0;
        if (i == 2) image.range = 0;
        if (i == 3) image.transfer = 0;
        if (i == 4) image.num_buffers = 5;
        set_buffers(image, 4);
    }
    return (void)words, count;
}
/* Publish nothing. After a line of input there is no descriptor left for two seconds; print how often
 * zc_publisher_step() returned meanwhile. */
static int starved(int count, char **words) {
    open_camera();
    puts(zc_publisher_announcement(camera));
    fflush(stdout);
    getchar();
    alarm(60);
    const int lowest = dup(0);
    close(lowest);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = (rlim_t)lowest;
    setrlimit(RLIMIT_NOFILE, &limit);
    int steps = 0;
    for (const double end = seconds() + 2; seconds() < end; steps++) zc_publisher_step(camera, -1);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    say_number(steps);
    for (;;) zc_publisher_step(camera, -1);
    return (void)words, count;
}
/* Release a frame with a fence, which is kept after it has signalled. Print how often zc_publisher_step() returned in
 * the half second after that. */
static int keeper(int count, char **words) {
    zc_frame *frame = NULL;
    int slot, steps = 0;
    open_camera();
    set_buffers(new_image(), 4);
    if (zc_client_open(&(zc_client_options){.topic = words[count - 1]}, &client) != 0) fail();
    while (zc_client_next(client, 0, &frame) == 0) {
        zc_publisher_step(camera, 10);
        zc_consumer one;
        if (zc_publisher_consumers(camera, &one, 1) == 0 || !one.served) continue;
        if ((slot = zc_publisher_free_slot(camera)) < 0) continue;
        zc_publisher_publish(camera, (unsigned)slot, &(zc_frame_info){.sequence = 1}, -1);
    }
    const int fence = eventfd(0, EFD_CLOEXEC);
    if (zc_frame_release(frame, fence) != 0) fail();
    zc_publisher_step(camera, -1);
    eventfd_write(fence, 1);
    for (int i = 0; i < 50; i++) zc_publisher_step(camera, 10);
    while (zc_publisher_free_slot(camera) >= 0) continue;
    for (const double end = seconds() + 0.5; seconds() < end; steps++) zc_publisher_step(camera, -1);
    return say_number(steps);
}
/* Print for each format, size and alignment the first plane's stride and the size, or the error. */
static int layouts(int count, char **words) {
    for (char **word = words; word + 3 < words + count; word += 4) {
        zc_image image;
        const char *name = word[0];
        const uint32_t fourcc = ZC_FOURCC(name[0], name[1], name[2], name[3]);
        const uint32_t width = (uint32_t)atoi(word[1]), height = (uint32_t)atoi(word[2]);
        const uint32_t align = (uint32_t)atoi(word[3]);
        const int error = zc_image_linear(&image, fourcc, width, height, align, align);
        if (error != 0) printf("%d: %s\n", error, zc_error());
        else printf("%u %ju\n", image.planes[0].stride, (uintmax_t)image.buffer_size[0]);
    }
    return 0;
}
/* Print for each heap and options whether a consumer with these options takes the heap's buffers: "taken", or why not. */
static int taker(int count, char **words) {
    for (char **word = words; word + 1 < words + count; word += 2) {
        zc_consumer consumer = {.memory = 3, .stride_align = 1, .offset_align = 1};
        zc_image image;
        char why[240];
        if (zc_image_linear(&image, NV12, 64, 48, 1, 1) != 0) fail();
        image.kind = strcmp(word[0], "memfd") == 0 ? ZC_MEMFD : ZC_DMABUF;
        strcpy(consumer.options, word[1]);
        puts(zc_consumer_takes(&consumer, &image, word[0], why, sizeof why) ? "taken" : why);
    }
    return 0;
}

int main(int count, char **words) {
    static const struct { const char *name; int (*run)(int count, char **words); } programs[] = {
        {"forker", forker}, {"poller", poller}, {"told", told}, {"resizer", resizer},
        {"forgetful", forgetful}, {"starved", starved}, {"keeper", keeper}, {"layouts", layouts}, {"taker", taker},
        {"stamper", stamper}, {"line", line},
    };
    for (size_t i = 0; count > 1 && i < sizeof programs / sizeof *programs; i++) {
        if (strcmp(programs[i].name, words[1]) != 0) continue;
        const int code = programs[i].run(count - 2, words + 2);
        if (client != NULL) zc_client_close(client);
        if (camera != NULL) zc_publisher_close(camera);
        return code;
    }
    return 2;
}
