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
/* Masks of what was found, painted into a picture of labels. detection/extras.py does the same in NumPy, and says what it means:
 * both agree in every bit, so sums are added mask by mask, and nothing is contracted. */
#ifndef ZC_NATIVE_MASKS_H
#define ZC_NATIVE_MASKS_H

#include "decode.h"

/* Strides in bytes, in any order. */
struct zc_prototypes {
    const char *data;
    enum zc_type type;
    size_t masks, rows, columns;
    ptrdiff_t mask, row, column;
};
/* For each of the `count` pixels along an axis the prototypes' pixel before it, and the share that the next one has. */
struct zc_axis {
    const int32_t *before;
    const float *share;
    size_t count;
};
/* `row` pixels from one row to the next. */
struct zc_labels { uint16_t *pixels; ptrdiff_t row; };

/* Zero `count` rectangles, each x0, y0, x1, y1. */
void zc_wipe(const struct zc_labels *labels, const int32_t *places, size_t count);

/* Give each pixel of a mask the number of its box, from 1 on; the first boxes are on top. A pixel is of a mask where the sum of the
 * prototypes by the box's weights, less its offset, is above 0. The caller has checked that all boxes and axes lie inside.
 * 1; 0: the prototypes lie in a way that is left to NumPy; -1: there is no memory. */
int zc_paint(const struct zc_prototypes *prototypes, const struct zc_axis *across, const struct zc_axis *down, const float *weights,
             const float *offsets, const int32_t *boxes, size_t count, const struct zc_labels *labels);

#endif
