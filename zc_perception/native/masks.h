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
/* Paint the masks of detected boxes into a picture of labels. detection/extras.py does the same in NumPy, and documents it. Both must agree in
 * every bit, so sums are added mask by mask, and floating-point operations aren't contracted. */
#ifndef ZC_NATIVE_MASKS_H
#define ZC_NATIVE_MASKS_H

#include "decode.h"

/* The prototypes: `masks` pictures of rows x columns. mask, row and column are strides in bytes, in any order. */
struct zc_prototypes {
    const char *data;
    enum zc_type type;
    size_t masks, rows, columns;
    ptrdiff_t mask, row, column;
};
/* How `count` label pixels along an axis map to the prototypes. before[i]: the prototypes' pixel before label pixel i; share[i]: the weight, 0 to 1,
 * of the prototypes' next pixel. */
struct zc_axis {
    const int32_t *before;
    const float *share;
    size_t count;
};
/* A picture of labels; its rows are `row` pixels apart. */
struct zc_labels { uint16_t *pixels; ptrdiff_t row; };

/* Set the pixels of `count` rectangles to 0; places has x0, y0, x1, y1 of each. */
void zc_wipe(const struct zc_labels *labels, const int32_t *places, size_t count);

/* Write the box's number (from 1 on) into each pixel of its mask; earlier boxes cover later ones. A pixel is in the mask if the sum of the
 * prototypes, weighted by the box's weights, minus the box's offset, is above 0. The caller must check that boxes and axes are inside.
 * Returns 1: painted; 0: the prototypes' memory layout isn't supported, use NumPy; -1: out of memory. */
int zc_paint(const struct zc_prototypes *prototypes, const struct zc_axis *across, const struct zc_axis *down, const float *weights,
             const float *offsets, const int32_t *boxes, size_t count, const struct zc_labels *labels);

#endif
