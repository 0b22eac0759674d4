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
/* Find a frame's boxes and suppress overlapping ones. These functions don't use Python and keep no state between calls.
 * detection/heads/score_filter.py and candidates.py do the same in NumPy, and document the results. Both must agree in
 * every bit, so this is compiled without contraction of floating-point operations (-ffp-contract=off). */
#ifndef ZC_NATIVE_DECODE_H
#define ZC_NATIVE_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* GCC vectorises plain loops. With this attribute it also compiles a version for processors with AVX2. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ZC_NO_CLONES)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

enum zc_type { ZC_F32, ZC_I8, ZC_U8, ZC_I16, ZC_U16 };

/* Scores of a grid of cells. row, column and class_ are strides in bytes. Either the cells of a row or the classes of a cell must be
 * contiguous. */
struct zc_scores {
    const char *data;
    enum zc_type type;
    size_t rows, columns, classes;
    ptrdiff_t row, column, class_;
};

/* Find the cells that have a class of at least `least`, in ascending order. For each, write to the arrays, which have room for all
 * cells: its index, its best class (the first of equal ones; floats that aren't finite don't count) and that class's raw value.
 * Returns the number of cells found; -1: the strides or the alignment of scores aren't supported, use NumPy. */
ptrdiff_t zc_find(const struct zc_scores *scores, double least, int64_t *cells, int64_t *classes, void *best);

/* Boxes in pixels of the network's input. corners has four rows: x0, y0, x1 and y1 of all boxes. The rows are `stride` floats apart. */
struct zc_boxes {
    const float *corners, *scores;
    const int64_t *classes; /* NULL: boxes of all classes suppress each other */
    size_t count;
    ptrdiff_t stride;
};
/* The rectangle of the picture in the network's input, and the size of the source picture. */
struct zc_letterbox { double left, top, width, height, source_width, source_height; };

/* Suppress boxes that overlap a better one. Write the indices of at most `limit` boxes that stay to places, best first, and these
 * boxes in the source's pixels to sources, (n, 4). Returns their number; -1: out of memory. */
ptrdiff_t zc_suppress(const struct zc_boxes *boxes, const struct zc_letterbox *box, float iou, size_t limit, int64_t *places, float *sources);

/* The cells of a network that yields decoded boxes: for each its scores, and centre and size of its box in pixels of the network's
 * input. The real value of a float is the float itself, that of an integer is (integer - zero) * scale. */
struct zc_rows {
    struct zc_scores scores;
    const char *boxes;
    ptrdiff_t cell, number; /* bytes from one cell to the next, and from one of a cell's four numbers to the next */
    float scale, zero;
};
/* Which boxes zc_decode() keeps. */
struct zc_wanted {
    double least; /* the parameter of zc_find() */
    float score, iou;
    int class_agnostic;
    size_t limit;
};
/* The boxes that stay, best first: in the source's pixels, with score, class and the index of the cell. */
struct zc_kept { float *sources, *scores; int64_t *classes, *cells; };

enum { ZC_NO_MEMORY = -2 };
/* Call zc_find(), read the boxes of the cells found, and call zc_suppress(). cells, classes and best are the arrays for zc_find(). Returns the
 * number of boxes that stay; -1: not supported, use NumPy; ZC_NO_MEMORY. */
ptrdiff_t zc_decode(const struct zc_rows *rows, const struct zc_letterbox *box, const struct zc_wanted *wanted, int64_t *cells, int64_t *classes,
                    void *best, const struct zc_kept *kept);

#endif
