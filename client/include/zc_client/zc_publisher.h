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
/* Publish a camera's frames from C, so that zc_perception's nodes and zc_client read the driver's own buffers.
 *
 *     zc_publisher *camera;
 *     zc_publisher_open(&(zc_publisher_options){.topic = "/image_raw", .heap = "memfd"}, &camera);
 *     while (0.3 s are not over) zc_publisher_step(camera, 20);  // hear who is there already and what it needs
 *     zc_publisher_set_buffers(camera, images, 8);         // the driver's buffers, once
 *     for (;;) {
 *         zc_publisher_step(camera, 0);                    // serve consumers; never waits for one
 *         for (int slot; (slot = zc_publisher_free_slot(camera)) >= 0;) queue_to_driver(slot);
 *         int full = dequeue_from_driver();
 *         zc_publisher_publish(camera, full, &(zc_frame_info){.stamp_ns = ..., .frame_id = "camera"}, -1);
 *     }
 *
 * A slot belongs to the caller from zc_publisher_free_slot() to zc_publisher_publish(), and to its readers after that.
 * A consumer that stops or hoards keeps the slots that were promised to it and no others; `reserved` slots stay the caller's.
 *
 * It announces itself by a file, by which our nodes find it on its topic. A ROS node should publish the text of
 * zc_publisher_announcement() on <topic>/_zc as well (std_msgs/String, reliable, transient_local, depth 1).
 * It serves consumers of its own user and of root. Threads: any thread may call any function. Errors: see zc_client.h. */
#ifndef ZC_CLIENT_ZC_PUBLISHER_H
#define ZC_CLIENT_ZC_PUBLISHER_H

#include "zc_client/zc_client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zc_publisher zc_publisher;

typedef struct zc_publisher_options {
    const char *topic; /* in full, such as "/front/image_raw" */
    int domain;        /* 0: ROS_DOMAIN_ID, or 0 where that is not set; -1: 0 in any case */
    const char *heap;  /* where the memory comes from: "memfd", "dma_heap/system", "v4l2", ... */
    uint32_t reserved; /* slots that are never promised to consumers; default 2 */
    bool renegotiates; /* consumers that the buffers don't suit wait in zc_publisher_consumers() instead of being refused */
    const zc_format *possible; /* formats that the camera could have, for people and their tools */
    size_t num_possible;
} zc_publisher_options;

/* A consumer that waits or is served, and what it needs of the buffers. */
typedef struct zc_consumer {
    char name[41];
    bool served;
    uint32_t window, depth;
    uint32_t memory; /* bits: 1 << (ZC_DMABUF - 1), 1 << (ZC_MEMFD - 1) */
    uint32_t stride_align, offset_align;
    uint32_t max_width, max_height; /* 0: any */
    size_t num_formats;             /* 0: any */
    zc_format formats[64];
    char options[1025];
} zc_consumer;

typedef struct zc_frame_info {
    uint64_t sequence;   /* the camera's number, which grows */
    int64_t stamp_ns;    /* header stamp, ROS clock */
    int64_t captured_ns; /* CLOCK_MONOTONIC when the camera had it; 0: now */
    uint64_t capture_cost_ns;
    const char *frame_id; /* at most 255 bytes of UTF-8; NULL: "" */
} zc_frame_info;

/* Listen and announce. There are no buffers yet: consumers that come are told to wait. */
ZC_API int zc_publisher_open(const zc_publisher_options *options, zc_publisher **publisher);
ZC_API void zc_publisher_close(zc_publisher *publisher);

/* A descriptor that polls readable when zc_publisher_step() or zc_publisher_free_slot() has something to do. */
ZC_API int zc_publisher_fd(const zc_publisher *publisher);

/* Serve what consumers have said. timeout_ms: how long it may wait for the first of them; 0 in a camera's loop. */
ZC_API int zc_publisher_step(zc_publisher *publisher, int timeout_ms);

/* The consumers that are there: their number, of which the first `room` are written to list. */
ZC_API size_t zc_publisher_consumers(zc_publisher *publisher, zc_consumer *list, size_t room);

/* Why such buffers don't suit a consumer, "": they do. Choose a layout for all consumers by it, before allocating. */
ZC_API bool zc_consumer_takes(const zc_consumer *consumer, const zc_image *image, const char *heap, char *why, size_t size);

/* Announce these buffers in place of those before, and serve every consumer that they suit; the others are refused by name.
 * The images differ in their descriptors only, which are duplicated. All slots of them are free at first: see
 * zc_publisher_free_slot(). count: reserved + 2 to 256, and no fewer than before, since consumers that are served keep what
 * was promised to them. Frames of buffers before stay valid. */
ZC_API int zc_publisher_set_buffers(zc_publisher *publisher, const zc_image *images, size_t count);

/* The next slot that nobody reads, which is the caller's from now on; -EAGAIN: none now. */
ZC_API int zc_publisher_free_slot(zc_publisher *publisher);

/* The caller has filled a slot: hand it to each consumer. Never waits. fence: a sync_file that signals when the pixels are
 * valid, which stays the caller's; -1: they are. 0 or more: how many consumers get it. */
ZC_API int zc_publisher_publish(zc_publisher *publisher, unsigned slot, const zc_frame_info *about, int fence);

/* The announcement's text; valid until the next zc_publisher_set_buffers(). */
ZC_API const char *zc_publisher_announcement(const zc_publisher *publisher);

/* The planes of a LINEAR image in one buffer: each row and plane aligned. Sets everything but kind, colours and fds.
 * -EINVAL: a format that is not in docs/linear_formats.md, or a size that it can't have. */
ZC_API int zc_image_linear(zc_image *image, uint32_t fourcc, uint32_t width, uint32_t height, uint32_t stride_align, uint32_t offset_align);

/* A memfd of that size as consumers want it: mapped for writing here, and nowhere else. Its descriptor. */
ZC_API int zc_memfd(const char *name, size_t size, void **map);

#ifdef __cplusplus
}
#endif
#endif
