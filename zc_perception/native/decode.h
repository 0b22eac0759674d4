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
/* A frame's boxes. Nothing here knows Python, allocates more than it says, or keeps anything from one call to the next.
 * score_filter.py and candidates.py beside detection/heads do the same in NumPy, and say what each result means: both have
 * to agree in every bit, so this is compiled without contraction of floating-point operations. */
#ifndef ZC_NATIVE_DECODE_H
#define ZC_NATIVE_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* GCC makes vector code of plain loops; where it can, also such that newer processors run. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ZC_NO_CLONES)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

enum zc_type { ZC_F32, ZC_I8, ZC_U8, ZC_I16, ZC_U16 };

/* Scores of a grid: strides in bytes; either the columns or the classes lie side by side. */
struct zc_scores {
    const char *data;
    enum zc_type type;
    size_t rows, columns, classes;
    ptrdiff_t row, column, class_;
};

/* The cells of which a class is at least `least`, ascending, with the best class (of equal ones the first; of floats only
 * finite ones count) and its raw value. The three arrays have room for all cells. Returns their number; -1: the numbers lie
 * in a way that is left to NumPy. */
ptrdiff_t zc_find(const struct zc_scores *scores, double least, int64_t *cells, int64_t *classes, void *best);

/* Boxes in pixels of the network's input: x0, y0, x1, y1 in rows that are `stride` floats apart. */
struct zc_boxes {
    const float *corners, *scores;
    const int64_t *classes; /* NULL: boxes of all classes suppress each other */
    size_t count;
    ptrdiff_t stride;
};
/* Where the picture lies in the input, and what that is a picture of. */
struct zc_letterbox { double left, top, width, height, source_width, source_height; };

/* The places of at most `limit` boxes that stay, best first, and those boxes in the source's pixels, (n, 4).
 * Returns their number; -1: there is no memory. */
ptrdiff_t zc_suppress(const struct zc_boxes *boxes, const struct zc_letterbox *box, float iou, size_t limit, int64_t *places, float *sources);

/* Of each cell of an export with decoded boxes: its scores, and centre and size in pixels of the network's input. The real
 * value of a number is itself, or of an integer (number - zero) * scale. */
struct zc_rows {
    struct zc_scores scores;
    const char *boxes;
    ptrdiff_t cell, number; /* from a cell to the next, and from one of its four numbers to the next, in bytes */
    float scale, zero;
};
/* What is asked of boxes. */
struct zc_wanted {
    double least; /* as for zc_find() */
    float score, iou;
    int class_agnostic;
    size_t limit;
};
/* What stays, best first; the places are cells. */
struct zc_kept { float *sources, *scores; int64_t *classes, *cells; };

enum { ZC_NO_MEMORY = -2 };
/* zc_find(), the boxes of what it finds, and zc_suppress(), with those arrays of zc_find(). Returns their number; -1: as
 * zc_find(); ZC_NO_MEMORY. */
ptrdiff_t zc_decode(const struct zc_rows *rows, const struct zc_letterbox *box, const struct zc_wanted *wanted, int64_t *cells, int64_t *classes,
                    void *best, const struct zc_kept *kept);

#endif
