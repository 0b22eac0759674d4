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
/* Read the frames of a zc_perception camera in C, without a copy and without ROS.
 *
 *     zc_client *camera;
 *     if (zc_client_open(&(zc_client_options){.topic = "/image_raw"}, &camera) != 0)
 *         return fprintf(stderr, "%s\n", zc_error()), 1;
 *     for (zc_frame *frame; zc_client_next(camera, -1, &frame) == 1; zc_frame_release(frame, -1)) {
 *         const uint8_t *planes[ZC_MAX_PLANES];
 *         if (zc_frame_begin_read(frame, 1000, planes) != 0) continue;
 *         use(planes[0], frame->image->planes[0].stride, frame->image->height);
 *         zc_frame_end_read(frame);
 *     }
 *     zc_client_close(camera);
 *
 * A client keeps looking for its camera: it may start before the camera does, and finds it again after each restart.
 * It speaks the protocol of docs/wire.md, version 1, and checks every rule of that page.
 *
 * Threads: one thread at a time may call zc_client_next(). The functions that take a frame, and those that only look,
 * may be called by any thread. A child process after fork() must not use a client of its parent.
 *
 * Functions that return int return 0 (or what is said) for success and a negative errno value for an error; then
 * zc_error() has a sentence that says what was wrong, until the same thread calls the next function.
 */
#ifndef ZC_CLIENT_ZC_CLIENT_H
#define ZC_CLIENT_ZC_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZC_API __attribute__((visibility("default")))
#define ZC_MAX_PLANES 4
#define ZC_FOURCC(a, b, c, d) \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
#define ZC_LINEAR UINT64_C(0)
#define ZC_UNKNOWN_MODIFIER UINT64_C(0x00ffffffffffffff)

typedef struct zc_client zc_client;

enum zc_memory { ZC_DMABUF = 1, ZC_MEMFD = 2 };
enum zc_matrix { ZC_BT601 = 1, ZC_BT709 = 2, ZC_BT2020 = 3, ZC_RGB = 4 };
enum zc_range { ZC_LIMITED = 1, ZC_FULL = 2 };
enum zc_transfer { ZC_TRANSFER_BT709 = 1, ZC_TRANSFER_SRGB = 2, ZC_TRANSFER_PQ = 3 };

/* A DRM fourcc and modifier. */
typedef struct zc_format {
    uint32_t fourcc;
    uint64_t modifier;
} zc_format;

/* Where a plane lies: which of the image's buffers, and how many bytes from row to row, from the buffer's start, in all. */
typedef struct zc_plane {
    uint32_t buffer, stride;
    uint64_t offset, size;
} zc_plane;

/* An image's memory. The descriptors belong to the library: duplicate them to keep them longer than the frame. */
typedef struct zc_image {
    uint32_t width, height; /* pixels */
    uint32_t fourcc;
    uint32_t num_planes, num_buffers;
    uint32_t kind; /* of all descriptors: enum zc_memory */
    uint64_t modifier;
    uint8_t matrix, range, transfer; /* enum zc_matrix, zc_range, zc_transfer */
    zc_plane planes[ZC_MAX_PLANES];
    uint64_t buffer_size[ZC_MAX_PLANES]; /* bytes */
    int fds[ZC_MAX_PLANES];
} zc_image;

/* A frame and the lease on it: nobody writes into its memory before zc_frame_release(). */
typedef struct zc_frame {
    const zc_image *image;
    uint64_t slot;       /* the same number means the same memory, as long as the camera keeps its buffers */
    uint64_t generation; /* of the slot, grows with each frame in it */
    uint64_t sequence;   /* the camera's own number */
    int64_t stamp_ns;    /* header stamp, ROS clock */
    int64_t captured_ns, published_ns; /* CLOCK_MONOTONIC */
    uint64_t capture_cost_ns;
    uint32_t dropped; /* frames that the camera dropped for this client since the frame before */
    int fence;        /* a sync_file that signals when the pixels are valid; -1: they are valid. The library's */
    char frame_id[256];
} zc_frame;

/* What a client asks for. Fields that are zero have the defaults that are said here. */
typedef struct zc_client_options {
    const char *topic;   /* the ROS topic in full, such as "/front/image_raw"; or */
    const char *socket;  /* the path of a camera's socket */
    const char *publisher_id; /* who must listen at that socket; default: anybody */
    int domain;          /* of the topic; 0: ROS_DOMAIN_ID, or 0 where that is not set. -1: 0 in any case */
    const char *name;    /* for diagnostics of the camera, at most 40 bytes; default: the program's name */
    uint32_t window;     /* 1 to 64: frames that the client may hold at the same time; default 1 */
    uint32_t depth;      /* 1 to 64: newest frames that the camera keeps while the window is full; default 1 */
    bool history;        /* also the frames that the camera keeps for late readers */
    bool dmabufs_only;   /* memfds are of no use here, because a device reads the buffers */
    const zc_format *formats; /* that it can use; none: any, also layouts that a CPU can't read */
    size_t num_formats;
    uint32_t stride_align, offset_align; /* bytes, powers of two; default 1 */
    uint32_t max_width, max_height;      /* pixels; 0: any */
    const char *options;                 /* as docs/wire.md has them, such as "cpu=read; one_buffer"; default: none */
    const uid_t *users;                  /* users whose cameras are trusted, besides this one and root */
    size_t num_users;
} zc_client_options;

enum zc_state {
    ZC_SEARCHING, /* there is no camera */
    ZC_WAITING,   /* there is one, and it has no buffers for this client yet */
    ZC_CONNECTED,
    ZC_REFUSED, /* the camera has said no, or broke a rule; the client tries again */
};

/* Begin to look for a camera. Doesn't wait for it. -EINVAL: an option is wrong. */
ZC_API int zc_client_open(const zc_client_options *options, zc_client **client);

/* End it. Frames that are still held stay valid until they are released. NULL is allowed. */
ZC_API void zc_client_close(zc_client *client);

/* A descriptor that polls readable when zc_client_next() has something to do, which may be no frame. The client's. */
ZC_API int zc_client_fd(const zc_client *client);

/* The next frame, waiting for it: 1, and *frame is the caller's to release; 0: none came in time.
 * timeout_ms: -1 waits for ever, 0 not at all. -EINTR: a signal came. */
ZC_API int zc_client_next(zc_client *client, int timeout_ms, zc_frame **frame);

/* How things stand. */
typedef struct zc_status {
    enum zc_state state;
    char text[512];       /* why there are no frames, a sentence for a log; "" where all is well */
    uint32_t refusal;     /* the code of docs/wire.md with which the camera refused last; 0: it didn't */
    const char *rule;     /* the rule of that page that the camera broke last, as a word; NULL: none */
    uint64_t connections; /* that the camera welcomed */
} zc_status;
ZC_API void zc_client_status(zc_client *client, zc_status *status);

/* Tell the client of an announcement that came another way, such as on the topic <topic>/_zc. The text is the JSON
 * object of docs/wire.md. -EINVAL: it is none, or not for this host. */
ZC_API int zc_client_announce(zc_client *client, const char *announcement);

/* Say that the buffers can't be used, for example because a device can't import them. The camera logs why, the connection
 * ends, and the client connects again when the camera announces other buffers. */
ZC_API void zc_client_reject(zc_client *client, const char *why);

/* Give a frame back. fence: a sync_file that signals when a device has done with the pixels, which stays the caller's;
 * -1: nobody reads them any more. The frame is gone also where this fails, which only a fence that is none does. */
ZC_API int zc_frame_release(zc_frame *frame, int fence);

/* Begin to read with the CPU: wait for the fence, map the buffers and make the caches right. planes gets the address of
 * each plane's first row. -ETIMEDOUT: the fence didn't signal in time; -EIO: it says that the pixels are bad;
 * -ENOTSUP: the layout is not LINEAR. */
ZC_API int zc_frame_begin_read(zc_frame *frame, int timeout_ms, const uint8_t *planes[ZC_MAX_PLANES]);

/* End it. The addresses stay valid until the release, and are wrong between two readings of a dma-buf. */
ZC_API int zc_frame_end_read(zc_frame *frame);

/* How many rows a plane has and how many bytes of each row are samples. -ENOTSUP: the layout is not LINEAR. */
ZC_API int zc_plane_rows(const zc_image *image, uint32_t plane, size_t *rows, size_t *row);

/* What was wrong with the last call of this thread. */
ZC_API const char *zc_error(void);

#ifdef __cplusplus
}
#endif
#endif
