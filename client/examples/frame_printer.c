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
/* Print a line of JSON for each frame of a camera: its memory's inode, its stamp, and the CRC-32 of each plane.
 *
 *     frame_printer TOPIC|SOCKET [FRAMES [HOLD]]
 *
 * HOLD: number of frames that the program holds at the same time, to show that held frames stay valid (default 0, at most 16).
 * The program ends after FRAMES frames (0, the default: never), with exit code 0. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "zc_client/zc_client.h"

static uint32_t crc32_of(uint32_t value, const uint8_t *bytes, size_t length) {
    static uint32_t table[256];
    for (uint32_t i = 0; table[255] == 0 && i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < length; i++) value = table[(value ^ bytes[i]) & 0xff] ^ value >> 8;
    return value;
}
static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static void print_frame(zc_frame *frame) {
    const int64_t received_ns = now_ns();
    const uint8_t *planes[ZC_MAX_PLANES];
    struct stat about;
    fstat(frame->image->fds[0], &about);
    printf("{\"sequence\": %ju, \"slot\": %ju, \"stamp_ns\": %jd, \"dropped\": %u, \"inode\": %ju, \"latency_us\": %.1f, \"crc\": [",
           (uintmax_t)frame->sequence, (uintmax_t)frame->slot, (intmax_t)frame->stamp_ns, frame->dropped, (uintmax_t)about.st_ino,
           (double)(received_ns - frame->published_ns) / 1000);
    if (zc_frame_begin_read(frame, 1000, planes) == 0) {
        for (uint32_t i = 0; i < frame->image->num_planes; i++) {
            size_t rows, row;
            uint32_t crc = UINT32_MAX;
            zc_plane_rows(frame->image, i, &rows, &row);
            for (size_t y = 0; y < rows; y++) crc = crc32_of(crc, planes[i] + y * frame->image->planes[i].stride, row);
            printf(i > 0 ? ", %u" : "%u", ~crc);
        }
        zc_frame_end_read(frame);
        printf("]}\n");
    } else
        printf("], \"error\": \"%s\"}\n", zc_error());
    fflush(stdout);
}

int main(int count, char **words) {
    if (count < 2) return fprintf(stderr, "usage: frame_printer TOPIC|SOCKET [FRAMES [HOLD]]\n"), 2;
    const unsigned long frames = count > 2 ? strtoul(words[2], NULL, 10) : 0, hold = count > 3 ? strtoul(words[3], NULL, 10) : 0;
    const bool socket = strlen(words[1]) > 5 && strcmp(words[1] + strlen(words[1]) - 5, ".sock") == 0;
    if (hold > 16) return fprintf(stderr, "HOLD is %lu; it must be 0 to 16\n", hold), 2;
    const zc_client_options options = {.topic = socket ? NULL : words[1], .socket = socket ? words[1] : NULL, .window = (uint32_t)hold + 1};
    zc_frame *held[16] = {NULL}, *frame;
    zc_client *client;
    char before[512] = "";
    zc_status now;
    if (zc_client_open(&options, &client) != 0) return fprintf(stderr, "frame_printer: %s\n", zc_error()), 2;
    for (unsigned long done = 0; frames == 0 || done < frames;) {
        const int came = zc_client_next(client, 200, &frame);
        zc_client_status(client, &now);
        if (strcmp(before, now.text) != 0) fprintf(stderr, "frame_printer: %s\n", now.text[0] ? now.text : "connected"), strcpy(before, now.text);
        if (came < 0) return fprintf(stderr, "frame_printer: %s\n", zc_error()), 1;
        if (came == 0) continue;
        print_frame(frame);
        zc_frame **place = hold > 0 ? &held[done++ % hold] : (done++, &held[0]);
        if (*place != NULL) zc_frame_release(*place, -1);
        *place = frame;
        if (hold == 0) zc_frame_release(frame, -1), *place = NULL;
    }
    for (unsigned long i = 0; i < hold; i++)
        if (held[i] != NULL) zc_frame_release(held[i], -1);
    zc_client_close(client);
    return 0;
}
