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
#include "masks.h"

#include <stdlib.h>
#include <string.h>

void zc_wipe(const struct zc_labels *labels, const int32_t *places, size_t count) {
    for (; count > 0; count--, places += 4)
        for (int32_t y = places[1]; y < places[3] && places[0] < places[2]; y++)
            memset(labels->pixels + y * labels->row + places[0], 0, (size_t)(places[2] - places[0]) * sizeof(uint16_t));
}

/* Compute the weighted sums of n pixels of a row: eight masks at a time if a row's pixels are contiguous, else eight pixels at a time. */
#define DEFINE_SUMS(T)                                                                                                                    \
    CLONES static void sums_##T(const struct zc_prototypes *p, const char *row, const float *w, size_t n, float *restrict sums) {        \
        size_t x = 0, k = 0;                                                                                                              \
        if (p->column != (ptrdiff_t)sizeof(T)) {                                                                                          \
            for (size_t width = 8; x < n; x += width, row += (ptrdiff_t)width * p->column) {                                              \
                float some[8] = {0};                                                                                                      \
                width = n - x < 8 ? 1 : 8;                                                                                                \
                for (k = 0; k < p->masks && width == 8; k++)                                                                              \
                    for (ptrdiff_t j = 0; j < 8; j++) some[j] += w[k] * (float)*(const T *)(row + (ptrdiff_t)k * p->mask + j * p->column); \
                for (; k < p->masks; k++) some[0] += w[k] * (float)*(const T *)(row + (ptrdiff_t)k * p->mask);                            \
                memcpy(sums + x, some, width * sizeof *some);                                                                             \
            }                                                                                                                             \
            return;                                                                                                                       \
        }                                                                                                                                 \
        for (; x < n; x++) sums[x] = 0;                                                                                                   \
        for (; k + 8 <= p->masks; k += 8, row += 8 * p->mask, w += 8) {                                                                   \
            const T *const r0 = (const T *)row, *const r1 = (const T *)(row + p->mask), *const r2 = (const T *)(row + 2 * p->mask),       \
                    *const r3 = (const T *)(row + 3 * p->mask), *const r4 = (const T *)(row + 4 * p->mask),                               \
                    *const r5 = (const T *)(row + 5 * p->mask), *const r6 = (const T *)(row + 6 * p->mask),                               \
                    *const r7 = (const T *)(row + 7 * p->mask);                                                                           \
            const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], w4 = w[4], w5 = w[5], w6 = w[6], w7 = w[7];                           \
            for (x = 0; x < n; x++)                                                                                                       \
                sums[x] = sums[x] + w0 * (float)r0[x] + w1 * (float)r1[x] + w2 * (float)r2[x] + w3 * (float)r3[x] + w4 * (float)r4[x] +   \
                          w5 * (float)r5[x] + w6 * (float)r6[x] + w7 * (float)r7[x];                                                      \
        }                                                                                                                                 \
        for (; k < p->masks; k++, row += p->mask, w++)                                                                                    \
            for (x = 0; x < n; x++) sums[x] += *w * (float)((const T *)row)[x];                                                           \
    }
DEFINE_SUMS(float)
DEFINE_SUMS(int8_t)
DEFINE_SUMS(uint8_t)
DEFINE_SUMS(int16_t)
DEFINE_SUMS(uint16_t)

/* The part of the prototypes that a box needs, and the place of its sums. */
struct part {
    int32_t x, y;
    size_t columns, rows;
    float *sums;
};
static struct part part_of(const int32_t *box, const struct zc_axis *across, const struct zc_axis *down) {
    struct part part = {.columns = 0};
    if (box[2] <= box[0] || box[3] <= box[1]) return part;
    part.x = across->before[box[0]], part.columns = (size_t)(across->before[box[2] - 1] - part.x) + 2;
    part.y = down->before[box[1]], part.rows = (size_t)(down->before[box[3] - 1] - part.y) + 2;
    return part;
}
/* Compute the sums of `count` boxes. Each row of the prototypes is used for all boxes before the next row is read, because all prototypes together
 * don't fit into the caches. */
static void add_up(const struct zc_prototypes *p, const struct part *parts, const float *weights, const float *offsets, size_t count) {
    for (int32_t y = 0; (size_t)y < p->rows; y++)
        for (size_t i = 0; i < count; i++) {
            const struct part *const part = &parts[i];
            if (part->columns == 0 || y < part->y || (size_t)(y - part->y) >= part->rows) continue;
            const char *const row = p->data + y * p->row + part->x * p->column;
            const float *const own = weights + i * p->masks;
            float *const sums = part->sums + (size_t)(y - part->y) * part->columns;
            switch (p->type) {
            case ZC_F32: sums_float(p, row, own, part->columns, sums); break;
            case ZC_I8: sums_int8_t(p, row, own, part->columns, sums); break;
            case ZC_U8: sums_uint8_t(p, row, own, part->columns, sums); break;
            case ZC_I16: sums_int16_t(p, row, own, part->columns, sums); break;
            default: sums_uint16_t(p, row, own, part->columns, sums); break;
            }
            for (size_t x = 0; x < part->columns; x++) sums[x] -= offsets[i];
        }
}

/* The horizontal axis, prepared for STEP pixels at a time: after the last share there is room for STEP more numbers. starts[i]: the first label pixel
 * between the prototypes' pixels i and i + 1. */
enum { STEP = 8 };
struct columns {
    const int32_t *before;
    int32_t *starts;
    float *share, *lines[3];
};
static int make_ready(struct columns *columns, const struct zc_axis *across, size_t count) {
    const size_t n = across->count, size = n + STEP;
    float *const memory = calloc(4 * size + count + 1, sizeof *memory);
    if (memory == NULL) return 0;
    columns->before = across->before, columns->share = memory;
    for (size_t i = 0; i < 3; i++) columns->lines[i] = memory + (i + 1) * size;
    columns->starts = (int32_t *)(memory + 4 * size);
    if (n > 0) memcpy(memory, across->share, n * sizeof *memory);
    for (size_t i = 0, x = 0; i <= count; i++) {
        while (x < n && (size_t)across->before[x] < i) x++;
        columns->starts[i] = (int32_t)x;
    }
    return 1;
}
/* Interpolate a row of sums at the label pixels x to end; sums[0] belongs to the prototypes' pixel before x. Up to STEP - 1 values after the end
 * are written, too. */
CLONES static void stretch(const float *sums, const struct columns *columns, int32_t x, int32_t end, float *restrict values) {
    const float *const share = columns->share;
    for (int32_t cell = columns->before[x], last = columns->before[end - 1]; cell <= last; cell++, sums++) {
        const int32_t first = columns->starts[cell] > x ? columns->starts[cell] : x;
        const int32_t stop = columns->starts[cell + 1] < end ? columns->starts[cell + 1] : end;
        const float low = sums[0], step = sums[1] - sums[0];
        for (int32_t at = first; at < stop; at += STEP)
            for (int32_t j = 0; j < STEP; j++) values[at - x + j] = step * share[at + j] + low;
    }
}
CLONES static void subtract(const float *low, const float *high, size_t n, float *restrict steps) {
    for (size_t x = 0; x < n; x++) steps[x] = high[x] - low[x];
}
CLONES static void blend(const float *low, const float *steps, float share, size_t n, uint16_t label, uint16_t *restrict labels) {
    for (size_t x = 0; x < n; x++) labels[x] = steps[x] * share + low[x] > 0 ? label : labels[x];
}
static void paint_one(const struct part *part, const struct columns *across, const struct zc_axis *down, const int32_t *box, uint16_t label,
                      const struct zc_labels *labels) {
    const size_t n = (size_t)(box[2] - box[0]);
    float *low = across->lines[0], *high = across->lines[1], *const steps = across->lines[2];
    for (int32_t y = box[1], last = -2; y < box[3]; y++) {
        const int32_t row = down->before[y];
        if (row != last) { /* if it is the next row, the line below becomes the line above */
            const float *const sums = part->sums + (size_t)(row - part->y) * part->columns;
            float *const above = high;
            if (row == last + 1) high = low, low = above;
            else stretch(sums, across, box[0], box[2], low);
            stretch(sums + part->columns, across, box[0], box[2], high);
            subtract(low, high, n, steps);
            last = row;
        }
        blend(low, steps, down->share[y], n, label, labels->pixels + y * labels->row + box[0]);
    }
}

static int suits(const struct zc_prototypes *p) {
    static const ptrdiff_t SIZES[] = {sizeof(float), 1, 1, sizeof(int16_t), sizeof(uint16_t)};
    const ptrdiff_t size = SIZES[p->type];
    return (uintptr_t)p->data % (size_t)size == 0 && p->mask % size == 0 && p->row % size == 0 && p->column % size == 0;
}

int zc_paint(const struct zc_prototypes *p, const struct zc_axis *across, const struct zc_axis *down, const float *weights,
             const float *offsets, const int32_t *boxes, size_t count, const struct zc_labels *labels) {
    enum { TOGETHER = 32 }; /* boxes for which memory is allocated at the same time */
    struct part parts[TOGETHER];
    struct columns columns;
    if (!suits(p)) return 0;
    if (!make_ready(&columns, across, p->columns)) return -1;
    int done = 1;
    while (count > 0) {
        const size_t first = count > TOGETHER ? count - TOGETHER : 0;
        size_t room = 1;
        for (size_t i = first; i < count; i++) {
            parts[i - first] = part_of(boxes + 4 * i, across, down);
            room += parts[i - first].columns * parts[i - first].rows;
        }
        float *const memory = malloc(room * sizeof *memory), *sums = memory;
        if (memory == NULL) {
            done = -1;
            break;
        }
        for (size_t i = 0; i < count - first; i++) {
            parts[i].sums = sums;
            sums += parts[i].columns * parts[i].rows;
        }
        add_up(p, parts, weights + first * p->masks, offsets + first, count - first);
        for (; count > first; count--) {
            const struct part *const part = &parts[count - 1 - first];
            if (part->columns > 0) paint_one(part, &columns, down, boxes + 4 * (count - 1), (uint16_t)count, labels);
        }
        free(memory);
    }
    free(columns.share);
    return done;
}
