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
/* Publish a camera's frames from C; zc_perception's nodes and zc_client then read the driver's own buffers.
 *
 *     zc_publisher *camera;
 *     zc_publisher_open(&(zc_publisher_options){.topic = "/image_raw", .heap = "memfd"}, &camera);
 *     while (0.3 s are not over) zc_publisher_step(camera, 20);  // let consumers connect and send their needs
 *     zc_publisher_set_buffers(camera, images, 8);         // the driver's buffers, once
 *     for (;;) {
 *         zc_publisher_step(camera, 0);                    // serve consumers; never wait for a consumer
 *         for (int slot; (slot = zc_publisher_free_slot(camera)) >= 0;) queue_to_driver(slot);
 *         int full = dequeue_from_driver();
 *         zc_publisher_publish(camera, full, &(zc_frame_info){.stamp_ns = ..., .frame_id = "camera"}, -1);
 *     }
 *
 * The caller owns a slot from zc_publisher_free_slot() to zc_publisher_publish(); then its consumers own it. A consumer that
 * stops, or releases no frames, keeps only the slots that were promised to it; `reserved` slots are never promised.
 *
 * The publisher announces itself by a file, by which zc_perception's nodes find it. A ROS node should also publish the text
 * of zc_publisher_announcement() on <topic>/_zc (std_msgs/String, reliable, transient_local, depth 1). The publisher serves
 * consumers of its own user and of root. Threads: any thread may call any function. Errors: see zc_client.h. */
#ifndef ZC_CLIENT_ZC_PUBLISHER_H
#define ZC_CLIENT_ZC_PUBLISHER_H

#include "zc_client/zc_client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zc_publisher zc_publisher;

typedef struct zc_publisher_options {
    const char *topic; /* the full name, such as "/front/image_raw" */
    int domain;        /* ROS domain; 0: that in ROS_DOMAIN_ID, or 0 if that is not set; -1: always 0 */
    const char *heap;  /* where the memory comes from: "memfd", "dma_heap/system", "v4l2", ... */
    uint32_t reserved; /* number of slots that are never promised to consumers; default 2 */
    bool renegotiates; /* true: consumers that can't use the buffers wait instead of being refused, see zc_publisher_consumers() */
    const zc_format *possible; /* other formats that the camera could use; for information only */
    size_t num_possible;
} zc_publisher_options;

/* A consumer that waits for suitable buffers or is served (`served`), and its needs. */
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
    uint64_t sequence;   /* the camera's number of the frame; must grow */
    int64_t stamp_ns;    /* header stamp, ROS clock: nanoseconds since 1970 */
    int64_t captured_ns; /* when the camera delivered the frame, CLOCK_MONOTONIC; 0: now */
    uint64_t capture_cost_ns;
    const char *frame_id; /* at most 255 bytes of UTF-8; NULL: "" */
} zc_frame_info;

/* Listen and announce the publisher. Consumers that connect have to wait until zc_publisher_set_buffers(). */
ZC_API int zc_publisher_open(const zc_publisher_options *options, zc_publisher **publisher);
ZC_API void zc_publisher_close(zc_publisher *publisher);

/* Return a descriptor that is readable when zc_publisher_step() or zc_publisher_free_slot() should be called. */
ZC_API int zc_publisher_fd(const zc_publisher *publisher);

/* Handle the messages of consumers. timeout_ms: how long to wait for the first message; 0 in a camera's loop; -1: no limit. */
ZC_API int zc_publisher_step(zc_publisher *publisher, int timeout_ms);

/* Return the number of consumers that wait or are served; write the first `room` of them to list. */
ZC_API size_t zc_publisher_consumers(zc_publisher *publisher, zc_consumer *list, size_t room);

/* Return whether a consumer can use buffers like image from heap; why gets the reason if it can't, else "". Use this to choose
 * a layout that suits all consumers before you allocate. */
ZC_API bool zc_consumer_takes(const zc_consumer *consumer, const zc_image *image, const char *heap, char *why, size_t size);

/* Announce these buffers in place of the earlier ones. Serve every consumer that can use them; tell the others why they can't.
 * The images may differ only in their descriptors, which are duplicated. At first all slots are free, see
 * zc_publisher_free_slot(). count: reserved + 2 to 256, and not less than before, because consumers that are served keep the
 * slots that were promised to them. Frames in earlier buffers stay valid. */
ZC_API int zc_publisher_set_buffers(zc_publisher *publisher, const zc_image *images, size_t count);

/* Return the next slot that no consumer reads, which the caller owns from now on; -EAGAIN: there is none now. */
ZC_API int zc_publisher_free_slot(zc_publisher *publisher);

/* Publish a slot that the caller has filled; never wait. Return the number of consumers that get it. fence: a sync_file that
 * signals when the pixels are valid, which the caller still owns; -1: they are valid now. */
ZC_API int zc_publisher_publish(zc_publisher *publisher, unsigned slot, const zc_frame_info *about, int fence);

/* Return the announcement's text; valid until the next zc_publisher_set_buffers(). */
ZC_API const char *zc_publisher_announcement(const zc_publisher *publisher);

/* Set image to a LINEAR layout in one buffer, with strides and offsets aligned to these bytes (0: 1). The caller must set kind,
 * matrix, range, transfer and fds. -EINVAL: the format is not in docs/linear_formats.md, or can't have this size. */
ZC_API int zc_image_linear(zc_image *image, uint32_t fourcc, uint32_t width, uint32_t height, uint32_t stride_align, uint32_t offset_align);

/* Return the descriptor of a new memfd of that size, sealed so that consumers accept it. *map gets the address of its mapping
 * here, the only one that can write to it. */
ZC_API int zc_memfd(const char *name, size_t size, void **map);

#ifdef __cplusplus
}
#endif
#endif
