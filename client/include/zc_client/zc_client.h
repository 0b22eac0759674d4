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
 * A client looks for its camera until it is closed: it may start before the camera, and it connects again after each
 * restart of the camera. It speaks the protocol of docs/wire.md, version 1, and checks every rule of that page.
 *
 * Threads: one thread at a time may call zc_client_next(). Any thread may call the functions that take a frame, and those
 * that only read. A child process after fork() must not use a client of its parent.
 *
 * Functions that return int return 0 for success, unless their comment names another value, and a negative errno value for an
 * error. After an error zc_error() returns a sentence that describes it, until this thread's next call.
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

/* A plane's place. buffer: index of the image's buffer; stride: bytes from row to row; offset: bytes from the buffer's start;
 * size: bytes in all. */
typedef struct zc_plane {
    uint32_t buffer, stride;
    uint64_t offset, size;
} zc_plane;

/* An image's memory. The library owns the descriptors: duplicate them to keep them longer than the frame. */
typedef struct zc_image {
    uint32_t width, height; /* pixels */
    uint32_t fourcc;
    uint32_t num_planes, num_buffers;
    uint32_t kind; /* enum zc_memory; the same for all descriptors */
    uint64_t modifier;
    uint8_t matrix, range, transfer; /* enum zc_matrix, zc_range, zc_transfer */
    zc_plane planes[ZC_MAX_PLANES];
    uint64_t buffer_size[ZC_MAX_PLANES]; /* bytes */
    int fds[ZC_MAX_PLANES];
} zc_image;

/* A frame and its lease: the camera doesn't write to the frame's memory before zc_frame_release(). */
typedef struct zc_frame {
    const zc_image *image;
    uint64_t slot;       /* the same number means the same memory, until the camera has other buffers */
    uint64_t generation; /* grows with each frame in the same slot */
    uint64_t sequence;   /* the camera's number of the frame */
    int64_t stamp_ns;    /* header stamp, ROS clock */
    int64_t captured_ns, published_ns; /* CLOCK_MONOTONIC */
    uint64_t capture_cost_ns;
    uint32_t dropped; /* number of frames that this client missed since its previous frame, because it was too slow */
    int fence;        /* a sync_file that signals when the pixels are valid; -1: they are valid now. The library owns it */
    char frame_id[256];
} zc_frame;

/* A client's options. A field that is zero means the default that its comment names. */
typedef struct zc_client_options {
    const char *topic;   /* the full name of the ROS topic, such as "/front/image_raw"; set either this or socket */
    const char *socket;  /* the path of a camera's socket */
    const char *publisher_id; /* the publisher that must listen at that socket; default: any */
    int domain;          /* ROS domain of the topic; 0: that in ROS_DOMAIN_ID, or 0 if that is not set; -1: always 0 */
    const char *name;    /* the client's name in the camera's diagnostics, at most 40 bytes; default: the program's name */
    uint32_t window;     /* 1 to 64: frames that the client may hold at the same time; default 1 */
    uint32_t depth;      /* 1 to 64: newest frames that the camera keeps while the window is full; default 1 */
    bool history;        /* true: also get the frames that the camera keeps for late readers */
    bool dmabufs_only;   /* true: take no memfds, because a device must import the buffers */
    const zc_format *formats; /* formats that the client can use; none: any format, also layouts that a CPU can't read */
    size_t num_formats;
    uint32_t stride_align, offset_align; /* bytes, powers of two; default 1 */
    uint32_t max_width, max_height;      /* pixels; 0: any */
    const char *options;                 /* the options of HELLO in docs/wire.md, such as "cpu=read; one_buffer"; default: none */
    const uid_t *users;                  /* users whose cameras are trusted, besides this user and root */
    size_t num_users;
} zc_client_options;

enum zc_state {
    ZC_SEARCHING, /* no camera was found yet */
    ZC_WAITING,   /* a camera was found, but it has no buffers for this client yet */
    ZC_CONNECTED,
    ZC_REFUSED, /* the camera refused this client, doesn't answer, or broke a rule; the client tries again */
};

/* Begin to look for a camera, without waiting for it. -EINVAL: an option is wrong. */
ZC_API int zc_client_open(const zc_client_options *options, zc_client **client);

/* End the client. Frames that are still held stay valid until they are released. NULL is allowed. */
ZC_API void zc_client_close(zc_client *client);

/* Return a descriptor, owned by the client, that is readable when zc_client_next() should be called. That call may return
 * no frame. */
ZC_API int zc_client_fd(const zc_client *client);

/* Wait for the next frame. Return 1: *frame is the next frame, and the caller must release it; 0: no frame came in time;
 * -EINTR: a signal came. timeout_ms: -1: no limit; 0: don't wait. */
ZC_API int zc_client_next(zc_client *client, int timeout_ms, zc_frame **frame);

/* A client's state. */
typedef struct zc_status {
    enum zc_state state;
    char text[512];       /* a sentence for a log: why no frames come; "": frames can come */
    uint32_t refusal;     /* the code in docs/wire.md of the camera's last refusal; 0: it never refused */
    const char *rule;     /* the rule of docs/wire.md that the camera broke last, as a word; NULL: none */
    uint64_t connections; /* how often the camera has welcomed this client */
} zc_status;
ZC_API void zc_client_status(zc_client *client, zc_status *status);

/* Give the client an announcement that the program got itself, for example from the topic <topic>/_zc. The client keeps the
 * newest one until its camera has ended, and uses it if the folder has no announcement of the topic. The text is the JSON
 * object of docs/wire.md. -EINVAL: it is no announcement, or not one of this host. */
ZC_API int zc_client_announce(zc_client *client, const char *announcement);

/* Reject the camera's buffers, for example because a device can't import them. The camera logs why, the connection ends,
 * and the client connects again when the camera announces other buffers. */
ZC_API void zc_client_reject(zc_client *client, const char *why);

/* Release a frame. fence: a sync_file that signals when a device has finished reading the pixels; the caller still owns it.
 * fence -1: the pixels aren't read any more. -EINVAL: fence is no sync_file; the frame is released nevertheless. */
ZC_API int zc_frame_release(zc_frame *frame, int fence);

/* Begin to read with the CPU: wait for the fence, map the buffers and synchronise the caches. planes gets the address of
 * each plane's first row. -ETIMEDOUT: the fence didn't signal in time; -EIO: it signalled an error, so the pixels are bad;
 * -ENOTSUP: the layout is not LINEAR. */
ZC_API int zc_frame_begin_read(zc_frame *frame, int timeout_ms, const uint8_t *planes[ZC_MAX_PLANES]);

/* End reading with the CPU. The addresses stay mapped until the release, but outside of begin and end a dma-buf's pixels may
 * be out of date there. */
ZC_API int zc_frame_end_read(zc_frame *frame);

/* Write to *rows the number of rows of a plane, and to *row the bytes of a row without padding. -ENOTSUP: the layout is not
 * LINEAR, or the format is not known. */
ZC_API int zc_plane_rows(const zc_image *image, uint32_t plane, size_t *rows, size_t *row);

/* Return a sentence that describes the error of this thread's last failed call. */
ZC_API const char *zc_error(void);

#ifdef __cplusplus
}
#endif
#endif
