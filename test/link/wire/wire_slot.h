/* What BUFFERS says of a slot: its memory and the image in it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire_bytes.h"

enum { DMABUF = 1, MEMFD = 2 };
struct plane { uint32_t buffer, stride; uint64_t offset, size; };
struct slot {
    uint64_t uid, generation, modifier;
    uint32_t width, height, fourcc, num_planes, num_buffers, kind;
    struct plane planes[4];
    uint64_t sizes[4];
    struct stat files[4];
    int fds[4];
    const uint8_t *maps[4];
    bool used, held, retired, open;
};
static void close_slot(struct slot *slot) {
    for (uint32_t i = 0; slot->open && i < slot->num_buffers; i++) {
        munmap((void *)(uintptr_t)slot->maps[i], (size_t)slot->sizes[i]);
        close(slot->fds[i]);
    }
    slot->open = false;
}

/* Bytes of a sample, and for each plane the bytes of one block of pixels and how many pixels wide and high it is. */
static const struct known_format { char name[5]; uint32_t sample, num_planes; struct { uint8_t bytes, across, down; } planes[3]; } KNOWN[] = {
    {"NV12", 1, 2, {{1, 1, 1}, {2, 2, 2}}}, {"NV21", 1, 2, {{1, 1, 1}, {2, 2, 2}}}, {"NV16", 1, 2, {{1, 1, 1}, {2, 2, 1}}},
    {"P010", 2, 2, {{2, 1, 1}, {4, 2, 2}}}, {"YU12", 1, 3, {{1, 1, 1}, {1, 2, 2}, {1, 2, 2}}}, {"YUYV", 1, 1, {{4, 2, 1}}},
    {"UYVY", 1, 1, {{4, 2, 1}}}, {"R8  ", 1, 1, {{1, 1, 1}}}, {"R16 ", 2, 1, {{2, 1, 1}}}, {"RG16", 2, 1, {{2, 1, 1}}},
    {"RG24", 1, 1, {{3, 1, 1}}}, {"BG24", 1, 1, {{3, 1, 1}}}, {"XR24", 1, 1, {{4, 1, 1}}}, {"AR24", 1, 1, {{4, 1, 1}}},
};

static const struct known_format *known_format(uint32_t fourcc) {
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (get32((const uint8_t *)KNOWN[i].name) == fourcc) return &KNOWN[i];
    return NULL;
}
/* The significant bytes of plane *index*: rows of *row* bytes. A plane that isn't of a known LINEAR format counts as one row. */
static uint64_t rows_of(const struct slot *slot, uint32_t index, uint64_t *row) {
    const struct known_format *format = slot->modifier == 0 ? known_format(slot->fourcc) : NULL;
    *row = slot->planes[index].size;
    if (format == NULL) return 1;
    const uint64_t bytes = format->planes[index].bytes, across = format->planes[index].across, down = format->planes[index].down;
    *row = slot->width / across * bytes;
    return slot->height / down;
}
