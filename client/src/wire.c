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
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sync_file.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif
enum { SEAL_SHRINK = 2, SEAL_GROW = 4, SEAL_FUTURE_WRITE = 16 };

bool wire_broken(struct wire_fault *fault, uint32_t code, const char *rule, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(fault->text, sizeof fault->text, format, values);
    va_end(values);
    fault->rule = rule;
    fault->code = code;
    return false;
}
#define BROKEN(...) return wire_broken(fault, WIRE_RULE, __VA_ARGS__)
#define CHECK(holds, ...) do { if (!(holds)) BROKEN(__VA_ARGS__); } while (0)

/* Read and write little-endian numbers, also on big-endian machines. */
static uint64_t get(const uint8_t *at, unsigned bytes) {
    uint64_t value = 0;
    while (bytes-- > 0) value = value << 8 | at[bytes];
    return value;
}
static uint32_t get16(const uint8_t *at) { return (uint32_t)get(at, 2); }
static uint32_t get32(const uint8_t *at) { return (uint32_t)get(at, 4); }
static uint64_t get64(const uint8_t *at) { return get(at, 8); }
static void put(uint8_t *at, unsigned bytes, uint64_t value) {
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> 8 * i);
}
static bool all_zero(const uint8_t *at, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (at[i] != 0) return false;
    return true;
}
static size_t begin(uint8_t *packet, enum wire_type type, size_t length) {
    memset(packet, 0, length);
    put(packet, 2, type);
    put(packet + 2, 2, length);
    return length;
}

/* Return the number of bytes of the UTF-8 character at text; 0: it isn't UTF-8. */
static size_t character(const uint8_t *text, size_t length) {
    static const uint32_t lowest[] = {0, 0x80, 0x800, 0x10000};
    uint32_t code = text[0];
    const unsigned more = code < 0x80 ? 0 : code >> 5 == 6 ? 1 : code >> 4 == 14 ? 2 : code >> 3 == 30 ? 3 : 4;
    if (more == 4 || more >= length) return 0;
    if (more > 0) code &= 0x3fu >> more;
    for (unsigned k = 1; k <= more; k++) {
        if (text[k] >> 6 != 2) return 0;
        code = code << 6 | (text[k] & 0x3fu);
    }
    return code < lowest[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : more + 1;
}
bool wire_is_utf8(const uint8_t *text, size_t length) {
    size_t i = 0, bytes;
    while (i < length && (bytes = character(text + i, length - i)) > 0) i += bytes;
    return i == length;
}
void wire_cut(char *out, size_t size, const char *text) {
    size_t used = 0, bytes;
    const size_t length = strlen(text);
    while (used < length && (bytes = character((const uint8_t *)text + used, length - used)) > 0 && used + bytes < size) used += bytes;
    memcpy(out, text, used);
    out[used] = '\0';
}
const char *wire_fourcc(uint32_t fourcc, char name[16]) {
    bool plain = true;
    for (int i = 0; i < 4; i++) plain = plain && (fourcc >> 8 * i & 0xff) >= 0x20 && (fourcc >> 8 * i & 0xff) <= 0x7e;
    if (plain) snprintf(name, 16, "%c%c%c%c", (int)(fourcc & 0xff), (int)(fourcc >> 8 & 0xff), (int)(fourcc >> 16 & 0xff), (int)(fourcc >> 24));
    else snprintf(name, 16, "0x%08x", fourcc);
    return name;
}
bool wire_is_identifier(const char *text) {
    size_t length = 0;
    while (text[length] >= 0x20 && text[length] <= 0x7e) length++;
    return length >= 1 && length <= 32 && text[length] == '\0';
}
/* Read a text field of a fixed size that is padded with zero bytes; false: other bytes come after its end. */
static bool fixed_text(const uint8_t *field, size_t size, char *text) {
    memcpy(text, field, size);
    text[size] = '\0';
    const size_t length = strlen(text);
    return length == size || all_zero(field + length, size - length);
}

size_t wire_pack_hello(uint8_t *packet, const struct wire_hello *hello) {
    const size_t options = strlen(hello->options), formats = 128, after = formats + 16 * hello->num_formats;
    const uint32_t numbers[] = {hello->window, hello->depth, hello->flags, hello->memory, hello->stride_align, hello->offset_align,
                                hello->max_width, hello->max_height, (uint32_t)hello->num_formats, (uint32_t)options};
    begin(packet, WIRE_HELLO, after + options);
    put(packet + 8, 4, WIRE_MAGIC);
    put(packet + 12, 2, hello->min_version);
    put(packet + 14, 2, hello->max_version);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) put(packet + 16 + 4 * i, 4, numbers[i]);
    memcpy(packet + 56, hello->publisher_id, strlen(hello->publisher_id));
    memcpy(packet + 88, hello->name, strlen(hello->name));
    for (size_t i = 0; i < hello->num_formats; i++) {
        put(packet + formats + 16 * i, 4, hello->formats[i].fourcc);
        put(packet + formats + 16 * i + 8, 8, hello->formats[i].modifier);
    }
    memcpy(packet + after, hello->options, options);
    return after + options;
}
size_t wire_pack_welcome(uint8_t *packet, const struct wire_welcome *welcome) {
    begin(packet, WIRE_WELCOME, 64);
    put(packet + 8, 2, welcome->version);
    put(packet + 12, 4, welcome->window);
    put(packet + 16, 4, welcome->depth);
    memcpy(packet + 32, welcome->publisher_id, strlen(welcome->publisher_id));
    return 64;
}
size_t wire_pack_text(uint8_t *packet, enum wire_type type, uint32_t code, const char *text) {
    const size_t at = type == WIRE_REFUSED ? 12 : 8;
    char cut[WIRE_MAX_TEXT];
    wire_cut(cut, WIRE_MAX_TEXT - at + 1, text);
    const size_t whole = strlen(cut);
    begin(packet, type, at + whole);
    if (type == WIRE_REFUSED) put(packet + 8, 4, code);
    memcpy(packet + at, cut, whole);
    return at + whole;
}
size_t wire_pack_buffers(uint8_t *packet, uint64_t uid, const zc_image *image) {
    begin(packet, WIRE_BUFFERS, 192);
    put(packet + 8, 8, uid);
    put(packet + 16, 4, image->width);
    put(packet + 20, 4, image->height);
    put(packet + 24, 4, image->fourcc);
    put(packet + 28, 4, image->num_planes);
    put(packet + 32, 8, image->modifier);
    put(packet + 40, 4, image->num_buffers);
    put(packet + 44, 4, image->kind);
    packet[48] = image->matrix, packet[49] = image->range, packet[50] = image->transfer;
    for (uint32_t i = 0; i < image->num_planes; i++) {
        uint8_t *plane = packet + 64 + 24 * i;
        put(plane, 4, image->planes[i].buffer);
        put(plane + 4, 4, image->planes[i].stride);
        put(plane + 8, 8, image->planes[i].offset);
        put(plane + 16, 8, image->planes[i].size);
    }
    for (uint32_t i = 0; i < image->num_buffers; i++) put(packet + 160 + 8 * i, 8, image->buffer_size[i]);
    return 192;
}
size_t wire_pack_frame(uint8_t *packet, const struct wire_frame *frame) {
    const size_t id = strlen(frame->frame_id);
    begin(packet, WIRE_FRAME, 72 + id);
    put(packet + 8, 8, frame->uid);
    put(packet + 16, 8, frame->generation);
    put(packet + 24, 8, frame->sequence);
    put(packet + 32, 8, (uint64_t)frame->stamp_ns);
    put(packet + 40, 8, (uint64_t)frame->captured_ns);
    put(packet + 48, 8, (uint64_t)frame->published_ns);
    put(packet + 56, 8, frame->capture_cost_ns);
    put(packet + 64, 4, frame->dropped);
    put(packet + 68, 4, frame->fence ? WIRE_FLAG_FENCE : 0);
    memcpy(packet + 72, frame->frame_id, id);
    return 72 + id;
}
size_t wire_pack_release(uint8_t *packet, const struct wire_release *release) {
    begin(packet, WIRE_RELEASE, 32);
    put(packet + 8, 8, release->uid);
    put(packet + 16, 8, release->generation);
    put(packet + 24, 4, release->fence ? WIRE_FLAG_FENCE : 0);
    return 32;
}
size_t wire_pack_retired(uint8_t *packet, uint64_t uid) {
    begin(packet, WIRE_RETIRED, 16);
    put(packet + 8, 8, uid);
    return 16;
}

bool wire_parse_header(const uint8_t *packet, size_t length, bool from_producer, enum wire_type *type, struct wire_fault *fault) {
    static const struct { uint16_t shortest, longest; bool producer, consumer; } SIZES[] = {
        [WIRE_HELLO] = {128, WIRE_MAX_HELLO, false, true}, [WIRE_WELCOME] = {64, 64, true, false},
        [WIRE_REFUSED] = {12, 512, true, true}, [WIRE_BUFFERS] = {192, 192, true, false}, [WIRE_FRAME] = {72, 327, true, false},
        [WIRE_RELEASE] = {32, 32, false, true}, [WIRE_RETIRED] = {16, 16, true, false}, [WIRE_NOTED] = {8, 512, true, false}};
    CHECK(length >= 8, "header", "a packet of %zu bytes has no header", length);
    const uint32_t number = get16(packet), said = get16(packet + 2);
    CHECK(said == length, "length", "the header says %u bytes, %zu came", said, length);
    CHECK(number >= WIRE_HELLO && number <= WIRE_NOTED && (from_producer ? SIZES[number].producer : SIZES[number].consumer), "type",
          "message type %u is not one that may come from there", number);
    CHECK(length >= SIZES[number].shortest && length <= SIZES[number].longest, "length", "a message of type %u with %zu bytes", number, length);
    CHECK(all_zero(packet + 4, 4), "reserved", "the header's zero is not 0");
    *type = (enum wire_type)number;
    return true;
}

bool wire_parse_hello(const uint8_t *packet, size_t length, struct wire_hello *hello, struct wire_fault *fault) {
    memset(hello, 0, sizeof *hello);
    /* First check the fields that all versions have, so that a newer consumer is refused because of its version. */
    CHECK(length >= 16 && get16(packet) == WIRE_HELLO, "state", "this is no HELLO");
    CHECK(get16(packet + 2) == length, "length", "the header says %u bytes, %zu came", get16(packet + 2), length);
    CHECK(get32(packet + 8) == WIRE_MAGIC, "magic", "HELLO: magic 0x%08x, not 0x%08x", get32(packet + 8), WIRE_MAGIC);
    hello->min_version = get16(packet + 12), hello->max_version = get16(packet + 14);
    CHECK(hello->min_version <= hello->max_version, "value", "HELLO: the lowest version is above the highest");
    if (hello->min_version > WIRE_VERSION || hello->max_version < WIRE_VERSION)
        return wire_broken(fault, WIRE_NO_VERSION, "version", "the consumer speaks versions %u to %u, this producer 1 to 1",
                           hello->min_version, hello->max_version);
    enum wire_type type;
    if (!wire_parse_header(packet, length, false, &type, fault)) return false;
    uint32_t numbers[10];
    for (size_t i = 0; i < 10; i++) numbers[i] = get32(packet + 16 + 4 * i);
    hello->window = numbers[0], hello->depth = numbers[1], hello->flags = numbers[2], hello->memory = numbers[3];
    hello->stride_align = numbers[4], hello->offset_align = numbers[5], hello->max_width = numbers[6], hello->max_height = numbers[7];
    const size_t formats = numbers[8], options = numbers[9];
    CHECK(hello->window >= 1 && hello->window <= WIRE_MAX_WINDOW && hello->depth >= 1 && hello->depth <= WIRE_MAX_WINDOW, "value",
          "HELLO: window %u, depth %u; they are 1 to 64", hello->window, hello->depth);
    CHECK((hello->flags & ~3u) == 0 && (hello->memory & ~3u) == 0, "reserved", "HELLO: unknown bits");
    CHECK(hello->memory != 0, "value", "HELLO: it takes no kind of memory");
    CHECK(hello->stride_align >= 1 && hello->offset_align >= 1, "value", "HELLO: an alignment is 0");
    CHECK(formats <= WIRE_MAX_FORMATS && options <= WIRE_MAX_OPTIONS && length == 128 + 16 * formats + options, "length",
          "a HELLO of %zu bytes says %zu formats and %zu bytes of options", length, formats, options);
    for (size_t i = 0; i < formats; i++) {
        const uint8_t *format = packet + 128 + 16 * i;
        CHECK(all_zero(format + 4, 4), "reserved", "HELLO: a reserved field of format %zu is not 0", i);
        hello->formats[i] = (zc_format){get32(format), get64(format + 8)};
    }
    hello->num_formats = formats;
    CHECK(fixed_text(packet + 88, 40, hello->name), "reserved", "HELLO: name has bytes after its end");
    CHECK(wire_is_utf8(packet + 88, strlen(hello->name)), "text", "HELLO: name is not UTF-8");
    const bool whole = fixed_text(packet + 128 + 16 * formats, options, hello->options);
    CHECK(whole, "reserved", "HELLO: options have bytes after their end");
    CHECK(wire_is_utf8((const uint8_t *)hello->options, strlen(hello->options)), "text", "HELLO: options are not UTF-8");
    if (!all_zero(packet + 56, 32))
        CHECK(fixed_text(packet + 56, 32, hello->publisher_id) && wire_is_identifier(hello->publisher_id), "publisher",
              "HELLO: publisher_id is not 1 to 32 printable ASCII characters");
    return true;
}

bool wire_parse_welcome(const uint8_t *packet, const struct wire_hello *asked, struct wire_welcome *welcome, struct wire_fault *fault) {
    welcome->version = get16(packet + 8), welcome->window = get32(packet + 12), welcome->depth = get32(packet + 16);
    CHECK(welcome->version == WIRE_VERSION, "version", "WELCOME: version %u, which this consumer doesn't speak", welcome->version);
    CHECK(welcome->window >= 1 && welcome->window <= asked->window && welcome->depth >= 1 && welcome->depth <= asked->depth, "granted",
          "WELCOME: window %u, depth %u; they are 1 to what was asked", welcome->window, welcome->depth);
    CHECK(all_zero(packet + 10, 2) && all_zero(packet + 20, 12), "reserved", "WELCOME: a reserved field is not 0");
    CHECK(fixed_text(packet + 32, 32, welcome->publisher_id) && wire_is_identifier(welcome->publisher_id), "publisher",
          "WELCOME: publisher_id is not 1 to 32 printable ASCII characters");
    CHECK(asked->publisher_id[0] == '\0' || strcmp(asked->publisher_id, welcome->publisher_id) == 0, "publisher",
          "WELCOME of '%s', who was not asked", welcome->publisher_id);
    return true;
}

void wire_parse_text(const uint8_t *packet, size_t length, enum wire_type type, uint32_t *code, char *text) {
    size_t i = type == WIRE_REFUSED ? 12 : 8, out = 0, bytes;
    *code = type == WIRE_REFUSED ? get32(packet + 8) : 0;
    if (type == WIRE_REFUSED && (*code < WIRE_NO_VERSION || *code > WIRE_OTHER_PUBLISHER)) *code = WIRE_RULE;
    for (; i < length; i += bytes > 0 ? bytes : 1) {
        bytes = character(packet + i, length - i);
        if (bytes == 0) memcpy(text + out, "\xef\xbf\xbd", 3), out += 3;
        else if (packet[i] < 0x20 || packet[i] == 0x7f) text[out++] = ' ';
        else memcpy(text + out, packet + i, bytes), out += bytes;
    }
    text[out] = '\0';
}

bool wire_parse_frame(const uint8_t *packet, size_t length, struct wire_frame *frame, struct wire_fault *fault) {
    const uint32_t flags = get32(packet + 68);
    const size_t id = length - 72;
    CHECK((flags & ~(uint32_t)WIRE_FLAG_FENCE) == 0, "reserved", "FRAME: unknown flags %#x", flags);
    CHECK(wire_is_utf8(packet + 72, id), "text", "FRAME: frame_id is not UTF-8");
    frame->uid = get64(packet + 8), frame->generation = get64(packet + 16), frame->sequence = get64(packet + 24);
    frame->stamp_ns = (int64_t)get64(packet + 32), frame->captured_ns = (int64_t)get64(packet + 40);
    frame->published_ns = (int64_t)get64(packet + 48), frame->capture_cost_ns = get64(packet + 56);
    frame->dropped = get32(packet + 64), frame->fence = flags & WIRE_FLAG_FENCE;
    memcpy(frame->frame_id, packet + 72, id);
    frame->frame_id[id] = '\0';
    return true;
}
bool wire_parse_release(const uint8_t *packet, struct wire_release *release, struct wire_fault *fault) {
    const uint32_t flags = get32(packet + 24);
    CHECK((flags & ~(uint32_t)WIRE_FLAG_FENCE) == 0 && all_zero(packet + 28, 4), "reserved", "RELEASE: unknown flags, or a reserved field is not 0");
    *release = (struct wire_release){get64(packet + 8), get64(packet + 16), flags & WIRE_FLAG_FENCE};
    return true;
}
uint64_t wire_uid(const uint8_t *packet) { return get64(packet + 8); }

static bool check_numbers(const zc_image *image, struct wire_fault *fault) {
    CHECK(image->num_buffers >= 1 && image->num_buffers <= 4 && image->num_planes >= 1 && image->num_planes <= 4, "planes",
          "BUFFERS: %u planes in %u buffers; both are 1 to 4", image->num_planes, image->num_buffers);
    CHECK(image->kind == ZC_DMABUF || image->kind == ZC_MEMFD, "kind", "BUFFERS: kind %u is neither 1 nor 2", image->kind);
    CHECK(image->matrix >= 1 && image->matrix <= 4 && image->range >= 1 && image->range <= 2 && image->transfer >= 1 && image->transfer <= 3, "colour",
          "BUFFERS: matrix %u, range %u, transfer %u", image->matrix, image->range, image->transfer);
    return true;
}
bool wire_parse_buffers(const uint8_t *packet, const int *fds, size_t num_fds, zc_image *image, struct wire_fault *fault) {
    *image = (zc_image){.width = get32(packet + 16), .height = get32(packet + 20), .fourcc = get32(packet + 24), .num_planes = get32(packet + 28),
                        .modifier = get64(packet + 32), .num_buffers = get32(packet + 40), .kind = get32(packet + 44), .matrix = packet[48],
                        .range = packet[49], .transfer = packet[50], .fds = {-1, -1, -1, -1}};
    if (!check_numbers(image, fault)) return false;
    CHECK(num_fds == image->num_buffers, "descriptors", "BUFFERS: %zu descriptors came with %u buffers", num_fds, image->num_buffers);
    CHECK(all_zero(packet + 51, 13), "reserved", "BUFFERS: reserved bytes are not 0");
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *plane = packet + 64 + 24 * i;
        image->planes[i] = (zc_plane){get32(plane), get32(plane + 4), get64(plane + 8), get64(plane + 16)};
        image->buffer_size[i] = get64(packet + 160 + 8 * i);
        CHECK(i < image->num_planes || all_zero(plane, 24), "reserved", "BUFFERS: the unused plane %u is not 0", i);
        CHECK(i < image->num_buffers || image->buffer_size[i] == 0, "reserved", "BUFFERS: the unused size %u is not 0", i);
    }
    memcpy(image->fds, fds, num_fds * sizeof *fds);
    return true;
}

/* For each format: its name, the bytes of a sample, its planes; for each plane the bytes of one block of pixels, and the block's width and height in
 * pixels. */
static const struct known { char name[5]; uint8_t sample, num_planes; struct { uint8_t bytes, across, down; } planes[3]; } KNOWN[] = {
    {"NV12", 1, 2, {{1, 1, 1}, {2, 2, 2}}}, {"NV16", 1, 2, {{1, 1, 1}, {2, 2, 1}}}, {"NV24", 1, 2, {{1, 1, 1}, {2, 1, 1}}},
    {"NV21", 1, 2, {{1, 1, 1}, {2, 2, 2}}}, {"NV61", 1, 2, {{1, 1, 1}, {2, 2, 1}}}, {"NV42", 1, 2, {{1, 1, 1}, {2, 1, 1}}},
    {"YU12", 1, 3, {{1, 1, 1}, {1, 2, 2}, {1, 2, 2}}}, {"YU16", 1, 3, {{1, 1, 1}, {1, 2, 1}, {1, 2, 1}}},
    {"YU24", 1, 3, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}}, {"YV12", 1, 3, {{1, 1, 1}, {1, 2, 2}, {1, 2, 2}}},
    {"YV16", 1, 3, {{1, 1, 1}, {1, 2, 1}, {1, 2, 1}}}, {"YV24", 1, 3, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}},
    {"NV15", 1, 2, {{5, 4, 1}, {5, 4, 2}}},
    {"P010", 2, 2, {{2, 1, 1}, {4, 2, 2}}}, {"P012", 2, 2, {{2, 1, 1}, {4, 2, 2}}}, {"P016", 2, 2, {{2, 1, 1}, {4, 2, 2}}},
    {"P210", 2, 2, {{2, 1, 1}, {4, 2, 1}}},
    {"YUYV", 1, 1, {{4, 2, 1}}}, {"YVYU", 1, 1, {{4, 2, 1}}}, {"UYVY", 1, 1, {{4, 2, 1}}}, {"VYUY", 1, 1, {{4, 2, 1}}},
    {"R8  ", 1, 1, {{1, 1, 1}}}, {"R16 ", 2, 1, {{2, 1, 1}}}, {"RG24", 1, 1, {{3, 1, 1}}}, {"BG24", 1, 1, {{3, 1, 1}}},
    {"XR24", 1, 1, {{4, 1, 1}}}, {"XB24", 1, 1, {{4, 1, 1}}}, {"RX24", 1, 1, {{4, 1, 1}}}, {"BX24", 1, 1, {{4, 1, 1}}},
    {"AR24", 1, 1, {{4, 1, 1}}}, {"AB24", 1, 1, {{4, 1, 1}}}, {"RA24", 1, 1, {{4, 1, 1}}}, {"BA24", 1, 1, {{4, 1, 1}}},
    {"RG16", 2, 1, {{2, 1, 1}}}, {"BG16", 2, 1, {{2, 1, 1}}},
};
static const struct known *known_format(uint32_t fourcc) {
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (get32((const uint8_t *)KNOWN[i].name) == fourcc) return &KNOWN[i];
    return NULL;
}
bool wire_plane_rows(const zc_image *image, uint32_t plane, uint64_t *rows, uint64_t *row) {
    const struct known *format = image->modifier == ZC_LINEAR ? known_format(image->fourcc) : NULL;
    if (format == NULL || plane >= format->num_planes) return false;
    *row = image->width / format->planes[plane].across * (uint64_t)format->planes[plane].bytes;
    *rows = image->height / format->planes[plane].down;
    return true;
}

bool wire_has_size(const zc_image *image) {
    const struct known *format = known_format(image->fourcc);
    bool fits = image->width >= 1 && image->width <= 65535 && image->height >= 1 && image->height <= 65535;
    for (uint32_t i = 0; format != NULL && i < format->num_planes; i++)
        fits = fits && image->width % format->planes[i].across == 0 && image->height % format->planes[i].down == 0;
    return fits;
}

bool wire_is_dmabuf(int fd) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    const int info = open(path, O_RDONLY | O_CLOEXEC);
    if (info < 0) return false;
    const ssize_t length = read(info, text, sizeof text - 1);
    close(info);
    text[length > 0 ? length : 0] = '\0';
    return strncmp(text, "exp_name:", 9) == 0 || strstr(text, "\nexp_name:") != NULL;
}
static bool fence_info(int fd, struct sync_file_info *info) {
    memset(info, 0, sizeof *info);
    return ioctl(fd, SYNC_IOC_FILE_INFO, info) == 0;
}
bool wire_is_sync_file(int fd) {
    struct sync_file_info info;
    return fence_info(fd, &info);
}
int wire_fence_status(int fd) {
    struct sync_file_info info;
    return fence_info(fd, &info) ? info.status : -EINVAL;
}

static bool check_buffer(const zc_image *image, uint32_t index, bool foreign, struct stat *about, struct wire_fault *fault) {
    const int fd = image->fds[index];
    const uint64_t size = image->buffer_size[index];
    if (image->kind == ZC_DMABUF) CHECK(wire_is_dmabuf(fd), "kind", "BUFFERS: descriptor %u is no dma-buf", index);
    else {
        const int seals = fcntl(fd, F_GET_SEALS), wanted = SEAL_SHRINK | SEAL_GROW | (foreign ? SEAL_FUTURE_WRITE : 0);
        CHECK(seals >= 0, "kind", "BUFFERS: descriptor %u is no memfd", index);
        CHECK((seals & wanted) == wanted, "seals", "BUFFERS: the memfd has seals %#x of %#x", (unsigned)seals, (unsigned)wanted);
    }
    const off_t end = lseek(fd, 0, SEEK_END);
    CHECK(size > 0 && end >= 0 && (uint64_t)end >= size, "buffer_size", "BUFFERS: buffer %u has %jd bytes, announced are %ju", index,
          (intmax_t)end, (uintmax_t)size);
    CHECK(fstat(fd, about) == 0, "kind", "BUFFERS: descriptor %u: %s", index, strerror(errno));
    return true;
}
static bool check_planes(const zc_image *image, const struct wire_hello *asked, const struct stat *files, struct wire_fault *fault) {
    const struct known *any = known_format(image->fourcc), *linear = image->modifier == ZC_LINEAR ? any : NULL;
    uint32_t used = 0;
    CHECK(linear == NULL || linear->num_planes == image->num_planes, "planes", "BUFFERS: %u planes don't fit the LINEAR format", image->num_planes);
    CHECK(any == NULL || any->num_planes <= image->num_planes, "planes", "BUFFERS: fewer planes than the format has");
    for (uint32_t i = 0; i < image->num_planes; i++) {
        const zc_plane *plane = &image->planes[i];
        CHECK(plane->buffer < image->num_buffers && plane->buffer <= used, "planes", "BUFFERS: plane %u is in buffer %u, which is not the next one", i,
              plane->buffer);
        used += plane->buffer == used;
        const uint64_t room = image->buffer_size[plane->buffer];
        CHECK(plane->size > 0 && plane->offset <= room && plane->size <= room - plane->offset, "bounds",
              "BUFFERS: plane %u has %ju bytes at %ju in %ju", i, (uintmax_t)plane->size, (uintmax_t)plane->offset, (uintmax_t)room);
        uint64_t rows, row;
        if (wire_plane_rows(image, i, &rows, &row)) {
            CHECK(plane->stride >= row, "stride", "BUFFERS: plane %u has stride %u, a row has %ju bytes", i, plane->stride, (uintmax_t)row);
            CHECK((rows - 1) * plane->stride + row <= plane->size, "bounds", "BUFFERS: the rows of plane %u don't fit into it", i);
            CHECK(plane->stride % linear->sample == 0 && plane->offset % linear->sample == 0, "alignment",
                  "BUFFERS: stride or offset of plane %u is no multiple of a sample", i);
        }
        CHECK(plane->stride % asked->stride_align == 0 && plane->offset % asked->offset_align == 0, "alignment",
              "BUFFERS: plane %u has stride %u and offset %ju, not as asked", i, plane->stride, (uintmax_t)plane->offset);
        for (uint32_t k = 0; k < i; k++) { /* compare inodes, because two descriptors may refer to the same memory */
            const zc_plane *other = &image->planes[k];
            const struct stat *a = &files[plane->buffer], *b = &files[other->buffer];
            CHECK(a->st_ino != b->st_ino || a->st_dev != b->st_dev || plane->offset >= other->offset + other->size ||
                      other->offset >= plane->offset + plane->size, "overlap", "BUFFERS: planes %u and %u overlap", k, i);
        }
    }
    CHECK(used == image->num_buffers, "planes", "BUFFERS: a buffer without a plane");
    return true;
}
bool wire_check_image(const zc_image *image, const struct wire_hello *asked, bool foreign, struct wire_fault *fault) {
    struct stat files[ZC_MAX_PLANES];
    if (!check_numbers(image, fault)) return false; /* a producer's own image wasn't parsed */
    CHECK(asked->memory >> (image->kind - 1) & 1, "kind", "BUFFERS: memory that this consumer doesn't take");
    CHECK(wire_has_size(image), "image", "BUFFERS: format %s can't have %ux%u pixels", wire_fourcc(image->fourcc, (char[16]){0}), image->width,
          image->height);
    CHECK((asked->max_width == 0 || image->width <= asked->max_width) && (asked->max_height == 0 || image->height <= asked->max_height), "image",
          "BUFFERS: %ux%u is larger than asked", image->width, image->height);
    bool offered = asked->num_formats == 0;
    for (size_t i = 0; i < asked->num_formats; i++)
        offered = offered || (asked->formats[i].fourcc == image->fourcc && asked->formats[i].modifier == image->modifier);
    CHECK(offered, "format", "BUFFERS: a format that was not asked for");
    for (uint32_t i = 0; i < image->num_buffers; i++)
        if (!check_buffer(image, i, foreign, &files[i], fault)) return false;
    return check_planes(image, asked, files, fault);
}

/* Parse a decimal number; false: the whole text isn't such a number. */
static bool number(const char *text, uint64_t *value) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}
static bool size_of(const char *text, uint64_t *width, uint64_t *height) {
    char copy[64];
    if (strlen(text) >= sizeof copy) return false;
    strcpy(copy, text);
    char *x = strchr(copy, 'x');
    if (x == NULL) return false;
    *x = '\0';
    return number(copy, width) && number(x + 1, height);
}
static char *trimmed(char *text) {
    while (*text == ' ') text++;
    for (size_t length = strlen(text); length > 0 && text[length - 1] == ' ';) text[--length] = '\0';
    return text;
}
static bool names_heap(char *value, const char *heap) {
    char *rest = value;
    for (char *one; (one = strsep(&rest, "|")) != NULL;) {
        one = trimmed(one);
        const size_t length = strlen(one);
        if (strcmp(one, heap) == 0 || (length > 0 && one[length - 1] == '/' && strncmp(one, heap, length) == 0)) return true;
    }
    return false;
}
/* Return whether the buffers satisfy one option of HELLO; false for options that can't be checked here. */
static bool keeps(const zc_image *image, const char *heap, const char *name, char *value) {
    uint64_t width, height, most;
    if (strcmp(name, "cpu") == 0)
        return image->modifier == ZC_LINEAR && (strcmp(value, "read") == 0 || strcmp(value, "write") == 0 || strcmp(value, "read_write") == 0);
    if (strcmp(name, "one_buffer") == 0) return image->num_buffers == 1;
    if (strcmp(name, "buffer_per_plane") == 0) return image->num_buffers == image->num_planes;
    if (strcmp(name, "heap") == 0) return names_heap(value, heap);
    if (strcmp(name, "device") == 0) return image->kind == ZC_DMABUF;
    /* Other heaps may have contiguous buffers: if a device can't import them, the consumer rejects them. */
    if (strcmp(name, "contiguous") == 0) return image->kind == ZC_DMABUF && strcmp(heap, "dma_heap/system") != 0 && strcmp(heap, "udmabuf") != 0;
    if (strcmp(name, "min_size") == 0) return size_of(value, &width, &height) && image->width >= width && image->height >= height;
    if (strcmp(name, "max_size") == 0) return size_of(value, &width, &height) && image->width <= width && image->height <= height;
    if (strcmp(name, "max_stride") == 0 || strcmp(name, "height_align") == 0) {
        if (!number(value, &most) || most == 0) return false;
        for (uint32_t i = 0; i < image->num_planes; i++) {
            uint64_t rows, row;
            if (name[0] == 'm' && image->planes[i].stride > most) return false;
            if (name[0] == 'h' && wire_plane_rows(image, i, &rows, &row)) {
                const uint64_t aligned = (image->height + most - 1) / most * most, down = image->height / rows;
                if (image->planes[i].size < (aligned / down) * image->planes[i].stride) return false;
            }
        }
        return true;
    }
    return false;
}
void wire_misfit(const zc_image *image, const char *heap, const struct wire_hello *needs, char *text) {
    enum { SIZE = 240 };
    char options[WIRE_MAX_OPTIONS + 1], *rest = options, format[16];
    bool offered = needs->num_formats == 0;
    text[0] = '\0';
    for (size_t i = 0; i < needs->num_formats; i++)
        offered = offered || (needs->formats[i].fourcc == image->fourcc && needs->formats[i].modifier == image->modifier);
    if (!(needs->memory >> (image->kind - 1) & 1))
        snprintf(text, SIZE, "the buffers are %s, which the consumer does not take", image->kind == ZC_DMABUF ? "dma-bufs" : "memfds");
    else if (!offered)
        snprintf(text, SIZE, "the format is %s with modifier 0x%jx, which the consumer does not take", wire_fourcc(image->fourcc, format), (uintmax_t)image->modifier);
    else if ((needs->max_width > 0 && image->width > needs->max_width) || (needs->max_height > 0 && image->height > needs->max_height))
        snprintf(text, SIZE, "the image is %ux%u, it takes at most %ux%u", image->width, image->height, needs->max_width, needs->max_height);
    for (uint32_t i = 0; text[0] == '\0' && i < image->num_planes; i++)
        if (image->planes[i].stride % needs->stride_align != 0 || image->planes[i].offset % needs->offset_align != 0)
            snprintf(text, SIZE, "plane %u has stride %u at offset %ju; it needs multiples of %u and %u", i, image->planes[i].stride,
                     (uintmax_t)image->planes[i].offset, needs->stride_align, needs->offset_align);
    strcpy(options, needs->options);
    for (char *one; text[0] == '\0' && (one = strsep(&rest, ";")) != NULL;) {
        char *value = one, *name = trimmed(strsep(&value, "="));
        if (name[0] != '\0' && !keeps(image, heap, name, value == NULL ? strchr(name, '\0') : trimmed(value)))
            snprintf(text, SIZE, "the buffers don't satisfy its option '%.100s'", name);
    }
}
