/* SPDX-License-Identifier: Apache-2.0 */
#include "decode.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cells whose maxima are computed together, so that all their numbers fit into the second cache. */
enum { BLOCK = 512, GROUPS = 17 };

/* GCC makes vector code of the plain loops below; where it can, also such that newer processors run. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ZC_NO_CLONES)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

#define T float
#define LOWEST -INFINITY
#define IS_FINITE(x) (fabsf(x) < INFINITY)
#include "decode_find.h"
#define T int8_t
#define LOWEST INT8_MIN
#define IS_FINITE(x) ((void)(x), 1)
#include "decode_find.h"
#define T uint8_t
#define LOWEST 0
#define IS_FINITE(x) ((void)(x), 1)
#include "decode_find.h"
#define T int16_t
#define LOWEST INT16_MIN
#define IS_FINITE(x) ((void)(x), 1)
#include "decode_find.h"
#define T uint16_t
#define LOWEST 0
#define IS_FINITE(x) ((void)(x), 1)
#include "decode_find.h"

static int is_multiple(ptrdiff_t stride, size_t size) { return stride % (ptrdiff_t)size == 0; }

ptrdiff_t zc_find(const struct zc_scores *given, double least, int64_t *cells, int64_t *classes, void *best) {
    static const size_t SIZES[] = {sizeof(float), 1, 1, sizeof(int16_t), sizeof(uint16_t)};
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

/* A box as OpenCV's Rect2d has it; the size is a float32 difference. next: the one of its class that stayed before it. */
struct rect {
    double x, y, width, height, area;
    int64_t place;
    int64_t class_;
    uint32_t rank;
    ptrdiff_t next;
};

/* By falling score, of equal ones in the order of their places: what has the lower rank comes first. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    const float plain = score + 0.0f; /* minus zero is zero */
    memcpy(&bits, &plain, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}
/* Sorts the order of n rects by rank, 11 bits at a time, keeping equal ones in place. */
static uint32_t *sort(const struct rect *rects, size_t n, uint32_t *order, uint32_t *spare) {
    for (unsigned shift = 0; shift < 32; shift += 11) {
        size_t starts[2048] = {0}, sum = 0;
        for (size_t i = 0; i < n; i++) starts[rects[i].rank >> shift & 2047]++;
        if (starts[rects[0].rank >> shift & 2047] == n) continue;
        for (size_t b = 0; b < 2048; b++) {
            const size_t count = starts[b];
            starts[b] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++) spare[starts[rects[order[i]].rank >> shift & 2047]++] = order[i];
        uint32_t *sorted = spare;
        spare = order;
        order = sorted;
    }
    return order;
}
/* Whether OpenCV's NMSBoxes takes them for the same object, with every rounding of its rectOverlap. */
static int same(const struct rect *a, const struct rect *b, float iou) {
    if (a->area + b->area <= DBL_EPSILON) return !(1.0f <= iou);
    const struct rect *left = a->x < b->x ? a : b, *right = a->x < b->x ? b : a;
    const struct rect *high = a->y < b->y ? a : b, *low = a->y < b->y ? b : a;
    double width = left->width - (right->x - left->x), height = high->height - (low->y - high->y);
    if (!(width > 0 && height > 0)) return !(0.0f <= iou);
    width = width < right->width ? width : right->width;
    height = height < low->height ? height : low->height;
    const double shared = width * height;
    return !(1.0f - (float)(1.0 - shared / (a->area + b->area - shared)) <= iou);
}
static double between(double low, double value, double high) {
    value = value > low ? value : low;
    return value < high ? value : high;
}
/* A side in the source's pixels, rounded once. */
static float in_source(double side, double offset, double source, double size) {
    return (float)between(0.0, (side - offset) * source / size, source);
}

/* Those that are boxes: numbers, with an area, and some of it inside of the picture. */
static size_t gather(const struct zc_boxes *boxes, const struct zc_letterbox *box, struct rect *rects) {
    const float left = (float)box->left, top = (float)box->top, right = left + (float)box->width, bottom = top + (float)box->height;
    size_t n = 0;
    for (size_t i = 0; i < boxes->count; i++) {
        const float *x = boxes->corners + i, x0 = x[0], y0 = x[boxes->stride], x1 = x[2 * boxes->stride], y1 = x[3 * boxes->stride];
        const float width = x1 - x0, height = y1 - y0;
        if (!(width > 0 && height > 0 && x1 > left && y1 > top && x0 < right && y0 < bottom && width * height < INFINITY)) continue;
        rects[n++] = (struct rect){x0, y0, width, height, (double)width * height, (int64_t)i, boxes->classes == NULL ? 0 : boxes->classes[i],
                                   rank_of(boxes->scores[i]), -1};
    }
    return n;
}

ptrdiff_t zc_suppress(const struct zc_boxes *boxes, const struct zc_letterbox *box, float iou, size_t limit, int64_t *places, float *sources) {
    enum { HEADS = 256 };
    const size_t most = boxes->count;
    ptrdiff_t heads[HEADS]; /* of those that stayed, by class: the last one, or of several classes the last one of all */
    size_t found = 0, stayed = 0;
    if (most == 0 || limit == 0) return 0;
    struct rect *rects = malloc(most * (sizeof *rects + 2 * sizeof(uint32_t)));
    if (rects == NULL) return -1;
    uint32_t *order = (uint32_t *)(rects + most);
    const size_t n = gather(boxes, box, rects);
    for (size_t i = 0; i < HEADS; i++) heads[i] = -1;
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    if (n > 0) order = sort(rects, n, order, order + most);
    for (size_t i = 0; i < n && stayed < limit; i++) {
        struct rect *one = &rects[order[i]];
        ptrdiff_t *head = &heads[(uint64_t)one->class_ % HEADS], other = *head;
        while (other >= 0 && (rects[other].class_ != one->class_ || !same(&rects[other], one, iou))) other = rects[other].next;
        if (other >= 0) continue;
        one->next = *head;
        *head = order[i];
        stayed++;
        const float *corner = boxes->corners + one->place;
        const float x0 = in_source(corner[0], box->left, box->source_width, box->width);
        const float y0 = in_source(corner[boxes->stride], box->top, box->source_height, box->height);
        const float x1 = in_source(corner[2 * boxes->stride], box->left, box->source_width, box->width);
        const float y1 = in_source(corner[3 * boxes->stride], box->top, box->source_height, box->height);
        if (!(x1 > x0 && y1 > y0)) continue; /* clipped to nothing */
        const float source[4] = {x0, y0, x1, y1};
        memcpy(sources + 4 * found, source, sizeof source);
        places[found++] = one->place;
    }
    free(rects);
    return (ptrdiff_t)found;
}
