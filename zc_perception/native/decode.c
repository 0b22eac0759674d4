/* SPDX-License-Identifier: Apache-2.0 */
#include "decode.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cells whose maxima are computed together, so that all their numbers fit into the second cache; and are asked for together. */
enum { BLOCK = 512, GROUPS = 17, STEP = 32 };

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

/* A box; the size is a float32 difference. next: the one of its class that stayed before it, or NOBODY. */
struct rect {
    float x, y, width, height;
    int64_t class_;
    uint32_t place, next;
};
#define NOBODY UINT32_MAX
/* A box in the order in which boxes are looked at. */
struct turn { uint32_t rank, rect; };

/* By falling score, of equal ones in the order of their places: what has the lower rank comes first. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    const float plain = score + 0.0f; /* minus zero is zero */
    memcpy(&bits, &plain, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}
/* Sorts n of them by rank, a byte at a time as far as they differ, keeping equal ones in place. */
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
/* How far two sides of boxes lie on each other; the second begins so far behind the first. */
static double shared_side(double first, double second, double ahead) {
    const double left = first - (ahead > 0 ? ahead : 0), right = second + (ahead < 0 ? ahead : 0), side = left < right ? left : right;
    return side > 0 ? side : 0;
}
/* Whether OpenCV's NMSBoxes takes them for the same object, with every rounding of its rectOverlap. */
static int same(const struct rect *a, const struct rect *b, float iou) {
    const double both = (double)a->width * a->height + (double)b->width * b->height;
    const double across = shared_side(a->width, b->width, (double)b->x - a->x), down = shared_side(a->height, b->height, (double)b->y - a->y);
    const double shared = across * down;
    if (both <= DBL_EPSILON) return !(1.0f <= iou);
    return !(1.0f - (float)(1.0 - shared / (both - shared)) <= iou);
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
static size_t gather(const struct zc_boxes *boxes, const struct zc_letterbox *box, struct rect *rects, struct turn *turns) {
    const float left = (float)box->left, top = (float)box->top, right = left + (float)box->width, bottom = top + (float)box->height;
    size_t n = 0;
    for (size_t i = 0; i < boxes->count; i++) {
        const float *x = boxes->corners + i, x0 = x[0], y0 = x[boxes->stride], x1 = x[2 * boxes->stride], y1 = x[3 * boxes->stride];
        const float width = x1 - x0, height = y1 - y0;
        if (!(width > 0 && height > 0 && x1 > left && y1 > top && x0 < right && y0 < bottom && width * height < INFINITY)) continue;
        rects[n] = (struct rect){x0, y0, width, height, boxes->classes == NULL ? 0 : boxes->classes[i], (uint32_t)i, NOBODY};
        turns[n] = (struct turn){rank_of(boxes->scores[i]), (uint32_t)n};
        n++;
    }
    return n;
}

ptrdiff_t zc_suppress(const struct zc_boxes *boxes, const struct zc_letterbox *box, float iou, size_t limit, int64_t *places, float *sources) {
    enum { HEADS = 256 };
    const size_t most = boxes->count;
    uint32_t heads[HEADS]; /* of those that stayed, by class: the last one, or of several classes the last one of all */
    size_t found = 0, stayed = 0;
    if (most == 0 || limit == 0) return 0;
    struct rect *rects = malloc(most * (sizeof *rects + 2 * sizeof(struct turn)));
    if (rects == NULL) return -1;
    struct turn *turns = (struct turn *)(rects + most);
    const size_t n = gather(boxes, box, rects, turns);
    for (size_t i = 0; i < HEADS; i++) heads[i] = NOBODY;
    if (n > 0) turns = sort(n, turns, turns + most);
    for (size_t i = 0; i < n && stayed < limit; i++) {
        struct rect *one = &rects[turns[i].rect];
        uint32_t *head = &heads[(uint64_t)one->class_ % HEADS], other = *head;
        while (other != NOBODY && (rects[other].class_ != one->class_ || !same(&rects[other], one, iou))) other = rects[other].next;
        if (other != NOBODY) continue;
        one->next = *head;
        *head = turns[i].rect;
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
