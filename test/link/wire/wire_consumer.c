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
/* A consumer on top of client/, for tests: it prints a line of JSON for each frame, then a summary.
 *
 * Exit codes: 0 all frames were read, 1 the producer ended or isn't there, 2 usage or the machine, 3 refused by the
 * producer, 4 the producer broke a rule of docs/wire.md (the line names it). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "zc_client/zc_client.h"

enum { ENDED = 1, USAGE = 2, TURNED_AWAY = 3, RULE_BROKEN = 4, MOST_HELD = 64, MOST_SEEN = 4096 };

struct reading { zc_frame *frame; uint32_t crc[ZC_MAX_PLANES]; };
static struct reading held[MOST_HELD];
static size_t num_held, num_seen, open_at_start;
static uint64_t seen[MOST_SEEN], num_frames, num_dropped, num_read_again;
static zc_client *client;

static size_t open_descriptors(void) {
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* the listing's own */
}
static void print_text(const char *text) {
    putchar('"');
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == '"' || *text == '\\') printf("\\u%04x", *text);
        else putchar(*text);
    putchar('"');
}
static uint32_t crc32_of(uint32_t value, const uint8_t *bytes, size_t length) {
    static uint32_t table[256];
    for (uint32_t i = 0; table[255] == 0 && i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < length; i++) value = table[(value ^ bytes[i]) & 0xff] ^ value >> 8;
    return value;
}
/* 1: read; below 0: what the acquire fence says. Layouts that nobody names aren't read, and count as read. */
static int read_planes(zc_frame *frame, uint32_t *crc) {
    const uint8_t *planes[ZC_MAX_PLANES];
    const int error = zc_frame_begin_read(frame, 60000, planes);
    if (error == -ENOTSUP) return 1;
    if (error != 0) return error;
    for (uint32_t i = 0; i < frame->image->num_planes; i++) {
        size_t rows, row;
        uint32_t value = UINT32_MAX;
        zc_plane_rows(frame->image, i, &rows, &row);
        for (size_t y = 0; y < rows; y++) value = crc32_of(value, planes[i] + y * frame->image->planes[i].stride, row);
        crc[i] = ~value;
    }
    zc_frame_end_read(frame);
    return 1;
}
static void print_frame(struct reading *reading) {
    const zc_frame *frame = reading->frame;
    struct stat about;
    struct timespec now;
    const int status = read_planes(reading->frame, reading->crc);
    clock_gettime(CLOCK_MONOTONIC, &now);
    fstat(frame->image->fds[0], &about);
    printf("{\"sequence\": %ju, \"uid\": %ju, \"generation\": %ju, \"stamp_ns\": %jd, \"frame_id\": ", (uintmax_t)frame->sequence,
           (uintmax_t)frame->slot, (uintmax_t)frame->generation, (intmax_t)frame->stamp_ns);
    print_text(frame->frame_id);
    printf(", \"dropped\": %u, \"inode\": %ju, \"fence_status\": %d, \"crc\": [", frame->dropped, (uintmax_t)about.st_ino, status);
    for (uint32_t i = 0; status == 1 && i < frame->image->num_planes; i++) printf(i > 0 ? ", %u" : "%u", reading->crc[i]);
    printf("], \"latency_us\": %.1f}\n", ((double)now.tv_sec * 1e9 + (double)now.tv_nsec - (double)frame->published_ns) / 1000.0);
    fflush(stdout);
    size_t i = 0;
    while (i < num_seen && seen[i] != frame->slot) i++;
    if (i == num_seen && num_seen < MOST_SEEN) seen[num_seen++] = frame->slot;
    num_dropped += frame->dropped;
    num_frames++;
}
__attribute__((noreturn)) static void finish(int code) {
    zc_status status;
    zc_client_status(client, &status);
    for (size_t i = 0; i < num_held; i++) {
        uint32_t crc[ZC_MAX_PLANES] = {0};
        const bool whole = code == ENDED || read_planes(held[i].frame, crc) != 1 || memcmp(crc, held[i].crc, sizeof crc) == 0;
        num_read_again += code != ENDED;
        if (!whole) printf("{\"rule\": \"lease\", \"text\": \"the pixels of a held frame changed\"}\n"), code = RULE_BROKEN;
        zc_frame_release(held[i].frame, -1);
    }
    zc_client_close(client);
    printf("{\"frames\": %ju, \"slots\": %zu, \"dropped\": %ju, \"reread\": %ju, \"reconnects\": %ju, \"open_fds\": %zu, \"open_fds_at_start\": %zu}\n",
           (uintmax_t)num_frames, num_seen, (uintmax_t)num_dropped, (uintmax_t)num_read_again,
           (uintmax_t)(status.connections > 0 ? status.connections - 1 : 0), open_descriptors(), open_at_start);
    exit(code);
}
static void pair(const char *text, uint32_t *first, uint32_t *second) {
    if (sscanf(text, "%u:%u", first, second) != 2) exit(USAGE);
}

int main(int count, char **words) {
    static const struct option NAMES[] = {{"socket", 1, NULL, 's'}, {"topic", 1, NULL, 't'}, {"publisher", 1, NULL, 'p'}, {"name", 1, NULL, 'n'},
        {"window", 1, NULL, 'w'}, {"depth", 1, NULL, 'd'}, {"frames", 1, NULL, 'f'}, {"reconnect", 0, NULL, 'r'}, {"format", 1, NULL, 'F'},
        {"memory", 1, NULL, 'm'}, {"align", 1, NULL, 'a'}, {"max-size", 1, NULL, 'M'}, {"user", 1, NULL, 'u'}, {"options", 1, NULL, 'o'},
        {"hold", 0, NULL, 'H'}, {"history", 0, NULL, 'h'}, {"reject", 1, NULL, 'R'}, {NULL, 0, NULL, 0}};
    static zc_format formats[64];
    zc_client_options options = {.name = "wire_consumer", .window = 2, .formats = formats};
    uint64_t frames = 0;
    bool hold = false, reconnect = false;
    const char *reject = NULL;
    uid_t user;
    open_at_start = open_descriptors();
    for (int option; (option = getopt_long(count, words, "", NAMES, NULL)) != -1;) {
        if (option == 's') options.socket = optarg;
        else if (option == 't') options.topic = optarg;
        else if (option == 'p') options.publisher_id = optarg;
        else if (option == 'n') options.name = optarg;
        else if (option == 'w') options.window = (uint32_t)atoi(optarg);
        else if (option == 'd') options.depth = (uint32_t)atoi(optarg);
        else if (option == 'f') frames = strtoull(optarg, NULL, 10);
        else if (option == 'r') reconnect = true;
        else if (option == 'm') options.dmabufs_only = strcmp(optarg, "dmabuf") == 0;
        else if (option == 'a') pair(optarg, &options.stride_align, &options.offset_align);
        else if (option == 'M') pair(optarg, &options.max_width, &options.max_height);
        else if (option == 'u') user = (uid_t)atoi(optarg), options.users = &user, options.num_users = 1;
        else if (option == 'o') options.options = optarg;
        else if (option == 'H') hold = true;
        else if (option == 'h') options.history = true;
        else if (option == 'R') reject = optarg;
        else if (option == 'F') {
            char name[5] = "    ";
            memcpy(name, optarg, strcspn(optarg, ":") < 4 ? strcspn(optarg, ":") : 4);
            formats[options.num_formats++] = (zc_format){ZC_FOURCC(name[0], name[1], name[2], name[3]), strtoull(strchr(optarg, ':') + 1, NULL, 0)};
        } else return USAGE;
    }
    if (zc_client_open(&options, &client) != 0) return fprintf(stderr, "wire_consumer: %s\n", zc_error()), USAGE;
    for (;;) {
        zc_frame *frame;
        zc_status status;
        /* One step at a time: the end of a connection must be seen before the client makes another one. */
        const int came = zc_client_next(client, 0, &frame);
        if (came < 0 && came != -EINTR) return fprintf(stderr, "wire_consumer: %s\n", zc_error()), USAGE;
        if (came == 1) {
            held[num_held] = (struct reading){.frame = frame};
            print_frame(&held[num_held]);
            if (reject != NULL) zc_client_reject(client, reject);
            if (hold && num_held + 1 < MOST_HELD) num_held++;
            else zc_frame_release(frame, -1);
            if (frames > 0 && num_frames >= frames && !hold) finish(0);
        }
        zc_client_status(client, &status);
        if (status.rule != NULL) {
            printf("{\"rule\": \"%s\", \"text\": ", status.rule);
            print_text(status.text);
            printf("}\n");
            finish(RULE_BROKEN);
        }
        if (status.refusal != 0 && !(reconnect && status.refusal == 4)) {
            printf("{\"refused\": %u, \"text\": ", status.refusal);
            print_text(status.text);
            printf("}\n");
            finish(TURNED_AWAY);
        }
        if (!reconnect && came == 0 && strcmp(status.text, "the camera ended the connection") == 0) {
            printf("{\"ended\": \"the producer closed\"}\n");
            finish(frames == 0 || hold ? 0 : ENDED);
        }
        struct pollfd ready = {.fd = zc_client_fd(client), .events = POLLIN};
        if (came == 0) poll(&ready, 1, 1000);
    }
}
