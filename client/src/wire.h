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
/* Pack, parse and check the messages of docs/wire.md, with every check of that page. No function here uses sockets or waits. */
#ifndef ZC_WIRE_H
#define ZC_WIRE_H

#include "zc_client/zc_client.h"

#define WIRE_MAGIC UINT32_C(0x4b4c435a)
enum { WIRE_VERSION = 1, WIRE_MAX_PACKET = 4096, WIRE_MAX_FDS = 4, WIRE_MAX_SLOTS = 256, WIRE_MAX_WINDOW = 64,
       WIRE_MAX_FORMATS = 64, WIRE_MAX_OPTIONS = 1024, WIRE_MAX_HELLO = 128 + 16 * WIRE_MAX_FORMATS + WIRE_MAX_OPTIONS,
       WIRE_MAX_TEXT = 512, WIRE_MAX_FRAME_ID = 255 };
enum wire_type { WIRE_HELLO = 1, WIRE_WELCOME, WIRE_REFUSED, WIRE_BUFFERS, WIRE_FRAME, WIRE_RELEASE, WIRE_RETIRED, WIRE_NOTED };
enum wire_refusal { WIRE_NO_VERSION = 1, WIRE_NOT_ALLOWED, WIRE_UNSUITABLE, WIRE_BUSY, WIRE_RULE, WIRE_OTHER_PUBLISHER };
enum { WIRE_FLAG_HISTORY = 1, WIRE_FLAG_WAITS = 2, WIRE_FLAG_FENCE = 1 };

/* A broken rule: its name in docs/wire.md, and a sentence about what the peer did (text). */
struct wire_fault {
    const char *rule;
    uint32_t code; /* enum wire_refusal: the code for a producer's REFUSED */
    char text[240];
};

struct wire_hello {
    uint32_t window, depth, flags, memory, stride_align, offset_align, max_width, max_height;
    uint32_t min_version, max_version;
    size_t num_formats;
    zc_format formats[WIRE_MAX_FORMATS];
    char publisher_id[33], name[41], options[WIRE_MAX_OPTIONS + 1];
};
struct wire_welcome { uint32_t version, window, depth; char publisher_id[33]; };
struct wire_release { uint64_t uid, generation; bool fence; };
/* The fields of FRAME. */
struct wire_frame {
    uint64_t uid, generation, sequence, capture_cost_ns;
    int64_t stamp_ns, captured_ns, published_ns;
    uint32_t dropped;
    bool fence;
    char frame_id[256];
};

/* Each wire_pack function returns the packet's length; packet has room for WIRE_MAX_PACKET bytes. Each parser that returns bool returns false and
 * fills *fault if a rule is broken. */
size_t wire_pack_hello(uint8_t *packet, const struct wire_hello *hello);
size_t wire_pack_welcome(uint8_t *packet, const struct wire_welcome *welcome);
size_t wire_pack_text(uint8_t *packet, enum wire_type type, uint32_t code, const char *text);
size_t wire_pack_buffers(uint8_t *packet, uint64_t uid, const zc_image *image);
size_t wire_pack_frame(uint8_t *packet, const struct wire_frame *frame);
size_t wire_pack_release(uint8_t *packet, const struct wire_release *release);
size_t wire_pack_retired(uint8_t *packet, uint64_t uid);

/* Parse the header and set *type. from_producer: a producer sent the packet. */
bool wire_parse_header(const uint8_t *packet, size_t length, bool from_producer, enum wire_type *type, struct wire_fault *fault);
bool wire_parse_hello(const uint8_t *packet, size_t length, struct wire_hello *hello, struct wire_fault *fault);
bool wire_parse_welcome(const uint8_t *packet, const struct wire_hello *asked, struct wire_welcome *welcome, struct wire_fault *fault);
/* Write the text of REFUSED or NOTED to text, which has room for 3 * WIRE_MAX_TEXT + 1 bytes. */
void wire_parse_text(const uint8_t *packet, size_t length, enum wire_type type, uint32_t *code, char *text);
bool wire_parse_frame(const uint8_t *packet, size_t length, struct wire_frame *frame, struct wire_fault *fault);
bool wire_parse_release(const uint8_t *packet, struct wire_release *release, struct wire_fault *fault);
uint64_t wire_uid(const uint8_t *packet);
/* Set *image from BUFFERS and its descriptors, after checking only the numbers in the message. */
bool wire_parse_buffers(const uint8_t *packet, const int *fds, size_t num_fds, zc_image *image, struct wire_fault *fault);
/* Check memory and planes by the rules of docs/wire.md. foreign: the producer belongs to another user. */
bool wire_check_image(const zc_image *image, const struct wire_hello *asked, bool foreign, struct wire_fault *fault);
/* Write to text why a consumer with these needs can't use images like this one; "": it can. heap: a name such as "memfd". text has room for 240
 * bytes. */
void wire_misfit(const zc_image *image, const char *heap, const struct wire_hello *needs, char *text);

bool wire_is_dmabuf(int fd);
bool wire_is_sync_file(int fd);
/* Return the state of a fence (sync_file): 1: signalled without error; 0: not signalled yet; below 0: -errno. */
int wire_fence_status(int fd);
/* Set *rows to a plane's number of rows and *row to the bytes of one row; false: the image isn't LINEAR, or its format isn't known. */
bool wire_plane_rows(const zc_image *image, uint32_t plane, uint64_t *rows, uint64_t *row);
/* Return whether the size is 1 to 65535 pixels each way, and a multiple of the format's subsampling. */
bool wire_has_size(const zc_image *image);
/* Copy text to out; if it doesn't fit into size bytes, cut it after a whole character. */
void wire_cut(char *out, size_t size, const char *text);
/* Write a fourcc's text, such as "NV12", to name, and return name. */
const char *wire_fourcc(uint32_t fourcc, char name[16]);
bool wire_is_identifier(const char *text);
bool wire_is_utf8(const uint8_t *text, size_t length);
__attribute__((format(printf, 4, 5))) bool wire_broken(struct wire_fault *fault, uint32_t code, const char *rule, const char *format, ...);

#endif
