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
#include "decode.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* BLOCK: number of cells whose maxima are computed together; their scores fit into the second-level cache. STEP: number of cells that are compared
 * with `least` together. GROUPS: number of arrays of maxima, one for all classes and one for each group of classes. LANES: number of scores of a cell
 * that are compared together. */
enum { BLOCK = 512, GROUPS = 17, STEP = 32, LANES = 32 };

#define T float
#define LOWEST -INFINITY
#define IS_FINITE(x) (fabsf(x) < INFINITY)
#define REAL(x) ((void)rows, (x))
#include "decode_find.h"
#define T int8_t
#define LOWEST INT8_MIN
#define IS_FINITE(x) ((void)(x), 1)
#define REAL(x) (((float)(x) - rows->zero) * rows->scale)
#include "decode_find.h"
#define T uint8_t
#define LOWEST 0
#define IS_FINITE(x) ((void)(x), 1)
#define REAL(x) (((float)(x) - rows->zero) * rows->scale)
#include "decode_find.h"
#define T int16_t
#define LOWEST INT16_MIN
#define IS_FINITE(x) ((void)(x), 1)
#define REAL(x) (((float)(x) - rows->zero) * rows->scale)
#include "decode_find.h"
#define T uint16_t
#define LOWEST 0
#define IS_FINITE(x) ((void)(x), 1)
#define REAL(x) (((float)(x) - rows->zero) * rows->scale)
#include "decode_find.h"

/* sizes of the number types, in the order of enum zc_type */
static const size_t SIZES[] = {sizeof(float), 1, 1, sizeof(int16_t), sizeof(uint16_t)};

static int is_multiple(ptrdiff_t stride, size_t size) { return stride % (ptrdiff_t)size == 0; }

ptrdiff_t zc_find(const struct zc_scores *given, double least, int64_t *cells, int64_t *classes, void *best) {
    struct zc_scores s = *given;
    const size_t size = SIZES[s.type];
    if ((s.column != (ptrdiff_t)size && s.class_ != (ptrdiff_t)size) || (uintptr_t)s.data % size != 0 || !is_multiple(s.row, size) ||
        !is_multiple(s.column, size) || !is_multiple(s.class_, size))
        return -1;
    if (s.row == (ptrdiff_t)s.columns * s.column) s.columns *= s.rows, s.rows = 1;
    switch (s.type) {
    case ZC_F32: return find_float(&s, (float)least, cells, classes, best);
    case ZC_I8: return find_int8_t(&s, (int8_t)least, cells, classes, best);
    case ZC_U8: return find_uint8_t(&s, (uint8_t)least, cells, classes, best);
    case ZC_I16: return find_int16_t(&s, (int16_t)least, cells, classes, best);
    default: return find_uint16_t(&s, (uint16_t)least, cells, classes, best);
    }
}

/* A box. The size is computed as a difference of float32 numbers, as in OpenCV. */
struct rect {
    float place[2], size[2];
    int64_t class_;
    size_t candidate;
};
/* A box that stays, in the form in which overlaps are computed. next: index of the box that was kept before this one and has the same head, or
 * NOBODY. */
struct stayed {
    double place[2], size[2], area;
    int64_t class_;
    uint32_t next;
};
#define NOBODY UINT32_MAX
/* An upper bound of an overlap's rounding error: about four times a float's last bit. */
#define ROUNDINGS 2.5e-7
/* A box's index and its rank, by which the boxes are sorted. */
struct turn { uint32_t rank, rect; };

/* Return a box's rank from its score: a higher score has a lower rank, and lower ranks come first. sort() keeps the order of equal ranks. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    const float plain = score + 0.0f; /* turns -0 into 0, so that both have the same rank */
    memcpy(&bits, &plain, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}
/* Sort n turns by rank, byte by byte (radix sort), skipping bytes in which all ranks are equal.
 * Equal ones keep their order. Returns the array with the result. */
static struct turn *sort(size_t n, struct turn *turns, struct turn *spare) {
    uint32_t least = UINT32_MAX, most = 0;
    for (size_t i = 0; i < n; i++) {
        least = turns[i].rank < least ? turns[i].rank : least;
        most = turns[i].rank > most ? turns[i].rank : most;
    }
    for (unsigned shift = 0; shift < 32 && (most - least) >> shift != 0; shift += 8) {
        uint32_t starts[256] = {0}, sum = 0;
        for (size_t i = 0; i < n; i++) starts[(turns[i].rank - least) >> shift & 255]++;
        for (size_t b = 0; b < 256; b++) {
            const uint32_t count = starts[b];
            starts[b] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++) spare[starts[(turns[i].rank - least) >> shift & 255]++] = turns[i];
        struct turn *sorted = spare;
        spare = turns;
        turns = sorted;
    }
    return turns;
}
/* Return whether OpenCV's NMSBoxes takes two boxes for the same object. The last line repeats every rounding of OpenCV's rectOverlap. The two lines
 * before it return early if rounding can't change the result. */
static int same(const struct stayed *a, const struct stayed *b, float iou) {
    double sides[2];
    for (int i = 0; i < 2; i++) { /* length of the overlap in x and y; (x + |x|) / 2 is max(x, 0), without a branch */
        const double ahead = b->place[i] - a->place[i], far = fabs(ahead);
        const double left = a->size[i] - (ahead + far) * 0.5, right = b->size[i] + (ahead - far) * 0.5, side = left < right ? left : right;
        sides[i] = (side + fabs(side)) * 0.5;
    }
    const double both = a->area + b->area, shared = sides[0] * sides[1], all = both - shared;
    if (both <= DBL_EPSILON) return !(1.0f <= iou);
    if (shared < all * (iou - ROUNDINGS)) return 0;
    if (shared > all * (iou + ROUNDINGS)) return 1;
    return !(1.0f - (float)(1.0 - shared / all) <= iou);
}
static double between(double low, double value, double high) {
    value = value > low ? value : low;
    return value < high ? value : high;
}
/* Convert a coordinate to the source's pixels, with only one rounding to float. */
static float in_source(double side, double offset, double source, double size) {
    return (float)between(0.0, (side - offset) * source / size, source);
}

/* Collect the valid boxes: their corners are numbers, they have an area, and a part of it is inside the picture. Returns how many. */
static size_t gather(const struct zc_boxes *boxes, const struct zc_letterbox *box, struct rect *rects, struct turn *turns) {
    const float left = (float)box->left, top = (float)box->top, right = left + (float)box->width, bottom = top + (float)box->height;
    size_t n = 0;
    for (size_t i = 0; i < boxes->count; i++) {
        const float *x = boxes->corners + i, x0 = x[0], y0 = x[boxes->stride], x1 = x[2 * boxes->stride], y1 = x[3 * boxes->stride];
        const float width = x1 - x0, height = y1 - y0;
        if (!(width > 0 && height > 0 && x1 > left && y1 > top && x0 < right && y0 < bottom && width * height < INFINITY)) continue;
        rects[n] = (struct rect){{x0, y0}, {width, height}, boxes->classes == NULL ? 0 : boxes->classes[i], i};
        turns[n] = (struct turn){rank_of(boxes->scores[i]), (uint32_t)n};
        n++;
    }
    return n;
}

ptrdiff_t zc_suppress(const struct zc_boxes *boxes, const struct zc_letterbox *box, float iou, size_t limit, int64_t *places, float *sources) {
    enum { HEADS = 256 };
    const size_t most = boxes->count;
    uint32_t heads[HEADS]; /* for each class modulo HEADS: the box that was kept last */
    size_t found = 0, count = 0;
    if (most == 0 || limit == 0) return 0;
    limit = limit < most ? limit : most;
    struct stayed *stayed = malloc(limit * sizeof *stayed + most * (sizeof(struct rect) + 2 * sizeof(struct turn)));
    if (stayed == NULL) return -1;
    struct rect *rects = (struct rect *)(stayed + limit);
    struct turn *turns = (struct turn *)(rects + most);
    const size_t n = gather(boxes, box, rects, turns);
    for (size_t i = 0; i < HEADS; i++) heads[i] = NOBODY;
    if (n > 0) turns = sort(n, turns, turns + most);
    for (size_t i = 0; i < n && count < limit; i++) {
        const struct rect *one = &rects[turns[i].rect];
        uint32_t *head = &heads[(uint64_t)one->class_ % HEADS], other = *head;
        const double width = one->size[0], height = one->size[1];
        const struct stayed next = {{one->place[0], one->place[1]}, {width, height}, width * height, one->class_, *head};
        while (other != NOBODY && (stayed[other].class_ != next.class_ || !same(&stayed[other], &next, iou))) other = stayed[other].next;
        if (other != NOBODY) continue;
        *head = (uint32_t)count;
        stayed[count++] = next;
        const float *corner = boxes->corners + one->candidate;
        const float x0 = in_source(corner[0], box->left, box->source_width, box->width);
        const float y0 = in_source(corner[boxes->stride], box->top, box->source_height, box->height);
        const float x1 = in_source(corner[2 * boxes->stride], box->left, box->source_width, box->width);
        const float y1 = in_source(corner[3 * boxes->stride], box->top, box->source_height, box->height);
        if (!(x1 > x0 && y1 > y0)) continue; /* nothing is left after clipping to the picture */
        const float source[4] = {x0, y0, x1, y1};
        memcpy(sources + 4 * found, source, sizeof source);
        places[found++] = (int64_t)one->candidate;
    }
    free(stayed);
    return (ptrdiff_t)found;
}

ptrdiff_t zc_decode(const struct zc_rows *rows, const struct zc_letterbox *box, const struct zc_wanted *wanted, int64_t *cells, int64_t *classes,
                    void *best, const struct zc_kept *kept) {
    const ptrdiff_t found = zc_find(&rows->scores, wanted->least, cells, classes, best);
    if (found <= 0) return found;
    float *const corners = malloc(5 * (size_t)found * sizeof *corners), *const scores = corners + 4 * found;
    if (corners == NULL) return ZC_NO_MEMORY;
    static size_t (*const READ[])(const struct zc_rows *, float, size_t, int64_t *, int64_t *, const void *, float *, float *) = {
        read_float, read_int8_t, read_uint8_t, read_int16_t, read_uint16_t,
    };
    const size_t n = READ[rows->scores.type](rows, wanted->score, (size_t)found, cells, classes, best, corners, scores);
    const struct zc_boxes boxes = {corners, scores, wanted->class_agnostic ? NULL : classes, n, found};
    const ptrdiff_t stay = zc_suppress(&boxes, box, wanted->iou, wanted->limit, kept->cells, kept->sources);
    for (ptrdiff_t i = 0; i < stay; i++) {
        const int64_t place = kept->cells[i];
        kept->scores[i] = scores[place], kept->classes[i] = classes[place], kept->cells[i] = cells[place];
    }
    free(corners);
    return stay < 0 ? ZC_NO_MEMORY : stay;
}
