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
/* The functions that read numbers of one type T. decode.c includes this file once for each type, with T, LOWEST, IS_FINITE and REAL defined. GCC
 * can vectorise the loops, and each comparison with a NaN is false. */
#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)
#define NAMED(what) JOIN(what##_, T)

/* find() is compiled once for each instruction set, with these functions inside it. */
#define INSIDE static inline __attribute__((always_inline))

/* Write the highest score of each of `count` cells to high. The cells are contiguous; the classes are `next` bytes apart. */
INSIDE void NAMED(highest)(const T *values, ptrdiff_t next, size_t classes, size_t count, T *high) {
    for (size_t i = 0; i < count; i++) high[i] = LOWEST;
    for (size_t k = 0; k < classes; k++, values = (const T *)((const char *)values + next))
        for (size_t i = 0; i < count; i++) high[i] = values[i] > high[i] ? values[i] : high[i];
}
/* Do the same for a group of eight classes: high gets the group's maxima; all gets the maxima of this and earlier groups. */
INSIDE void NAMED(highest_of_eight)(const T *values, ptrdiff_t next, size_t count, T *restrict high, T *restrict all) {
#define ROW(k) *const r##k = (const T *)((const char *)values + (k) * next)
    const T ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7);
#undef ROW
    for (size_t i = 0; i < count; i++) {
        T most = LOWEST;
#define HIGHER(k) most = r##k[i] > most ? r##k[i] : most
        HIGHER(0), HIGHER(1), HIGHER(2), HIGHER(3), HIGHER(4), HIGHER(5), HIGHER(6), HIGHER(7);
#undef HIGHER
        high[i] = most;
        all[i] = most > all[i] ? most : all[i];
    }
}
/* Return whether one of `count` contiguous scores is at least `least`. */
INSIDE int NAMED(reaches)(const T *values, size_t count, T least) {
    T hit = 0; /* of type T, because GCC vectorises the loop only if hit is as wide as the scores */
    for (size_t i = 0; i < count; i++) hit = values[i] >= least ? 1 : hit;
    return hit != 0;
}
/* Return the highest finite score of a cell. */
INSIDE T NAMED(highest_finite)(const char *values, ptrdiff_t next, size_t classes) {
    T high = LOWEST;
    if (next == (ptrdiff_t)sizeof(T)) { /* quick way; its result is right if it is finite, as it nearly always is */
        T lanes[LANES];
        size_t k = 0;
        for (size_t i = 0; i < LANES; i++) lanes[i] = LOWEST;
        for (; k + LANES <= classes; k += LANES)
            for (size_t i = 0; i < LANES; i++) lanes[i] = ((const T *)values)[k + i] > lanes[i] ? ((const T *)values)[k + i] : lanes[i];
        for (; k < classes; k++) high = ((const T *)values)[k] > high ? ((const T *)values)[k] : high;
        for (size_t half = LANES / 2; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
        high = lanes[0] > high ? lanes[0] : high;
        if (IS_FINITE(high)) return high;
        high = LOWEST;
    }
    for (size_t k = 0; k < classes; k++, values += next) {
        const T value = *(const T *)values;
        if (value > high && IS_FINITE(value)) high = value;
    }
    return high;
}
/* Return the first class, from `k` on, whose score is `most`; the last class if none has it. */
INSIDE size_t NAMED(class_of)(const char *values, ptrdiff_t next, size_t classes, size_t k, T most) {
    if (next == (ptrdiff_t)sizeof(T))
        for (; k + 8 < classes; k += 8) {
            T hit = 0;
            for (size_t i = 0; i < 8; i++) hit = ((const T *)values)[k + i] == most ? 1 : hit;
            if (hit != 0) break;
        }
    for (values += (ptrdiff_t)k * next; k + 1 < classes && *(const T *)values != most; k++) values += next;
    return k;
}
/* find() for values in which the classes of a cell are contiguous. */
INSIDE ptrdiff_t NAMED(find_in_cells)(const struct zc_scores *s, T least, int64_t *cells, int64_t *classes, T *best) {
    /* Without gaps, several cells are compared together: in most of them no score reaches `least`. */
    const size_t together = s->column == (ptrdiff_t)(s->classes * sizeof(T)) ? 4 : 1;
    size_t found = 0;
    for (size_t row = 0; row < s->rows; row++)
        for (size_t first = 0; first < s->columns; first += together) {
            const size_t end = first + together < s->columns ? first + together : s->columns;
            const char *cell = s->data + (ptrdiff_t)row * s->row + (ptrdiff_t)first * s->column;
            if (!NAMED(reaches)((const T *)cell, (end - first) * s->classes, least)) continue;
            for (size_t column = first; column < end; column++, cell += s->column) {
                if (together > 1 && !NAMED(reaches)((const T *)cell, s->classes, least)) continue;
                const T most = NAMED(highest_finite)(cell, s->class_, s->classes);
                cells[found] = (int64_t)(row * s->columns + column);
                classes[found] = (int64_t)NAMED(class_of)(cell, s->class_, s->classes, 0, most);
                best[found++] = most;
            }
        }
    return (ptrdiff_t)found;
}
CLONES static ptrdiff_t NAMED(find)(const struct zc_scores *s, T least, int64_t *cells, int64_t *classes, T *best) {
    if (s->column != (ptrdiff_t)sizeof(T)) return NAMED(find_in_cells)(s, least, cells, classes, best);
    /* Number of classes in a group. Each group has its own maxima, so that a cell's best class is searched in one group only. */
    const size_t group = s->classes <= 8 * (GROUPS - 1) ? 8 : (s->classes + GROUPS - 2) / (GROUPS - 1);
    const int few = s->classes < 8; /* too few classes for groups */
    size_t found = 0;
    /* Maxima of all classes (high[0]), then of each group. Each row has 64 more bytes, because rows exactly 2 KiB apart would share cache sets. */
    T high[GROUPS][BLOCK + 64 / sizeof(T)];
    for (size_t row = 0; row < s->rows; row++)
        for (size_t first = 0; first < s->columns; first += BLOCK) {
            const size_t count = s->columns - first < BLOCK ? s->columns - first : BLOCK;
            const char *block = s->data + (ptrdiff_t)row * s->row + (ptrdiff_t)first * s->column;
            size_t groups = 0;
            if (few) NAMED(highest)((const T *)block, s->class_, s->classes, count, high[0]);
            for (size_t i = 0; !few && i < count; i++) high[0][i] = LOWEST;
            for (size_t k = 0; !few && k < s->classes; k += group) {
                const T *first_class = (const T *)(block + (ptrdiff_t)k * s->class_);
                const size_t classes_here = s->classes - k < group ? s->classes - k : group;
                if (classes_here == 8) NAMED(highest_of_eight)(first_class, s->class_, count, high[++groups], high[0]);
                else {
                    NAMED(highest)(first_class, s->class_, classes_here, count, high[++groups]);
                    for (size_t i = 0; i < count; i++) high[0][i] = high[groups][i] > high[0][i] ? high[groups][i] : high[0][i];
                }
            }
            for (size_t i = 0; i < count; i++) {
                if (i % STEP == 0 && i + STEP <= count && !NAMED(reaches)(high[0] + i, STEP, least)) {
                    i += STEP - 1;
                    continue;
                }
                if (!(high[0][i] >= least)) continue;
                const char *cell = block + (ptrdiff_t)i * s->column;
                const int known = IS_FINITE(high[0][i]);
                const T most = known ? high[0][i] : NAMED(highest_finite)(cell, s->class_, s->classes);
                size_t k = 0;
                for (size_t g = 1; known && g < groups && high[g][i] != most; g++) k += group;
                cells[found] = (int64_t)(row * s->columns + first + i);
                classes[found] = (int64_t)NAMED(class_of)(cell, s->class_, s->classes, k, most);
                best[found++] = most;
            }
        }
    return (ptrdiff_t)found;
}
/* Read boxes and scores of the cells that find() has found. Keep cells with a finite score of at least `least`: write their corners, in the form that
 * zc_suppress() takes, and their scores, and move their indices and classes to the front. Returns the number of kept cells. */
static size_t NAMED(read)(const struct zc_rows *rows, float least, size_t found, int64_t *cells, int64_t *classes, const void *best, float *corners,
                          float *scores) {
    size_t n = 0;
    for (size_t i = 0; i < found; i++) {
        const char *place = rows->boxes + (ptrdiff_t)cells[i] * rows->cell;
        const float value = REAL(((const T *)best)[i]), score = value < 1.0f ? value : 1.0f;
        T box[4];
        for (int k = 0; k < 4; k++, place += rows->number) memcpy(&box[k], place, sizeof(T)); /* memcpy, as the number may be unaligned */
        const float x = REAL(box[0]), y = REAL(box[1]), across = REAL(box[2]) * 0.5f, down = REAL(box[3]) * 0.5f;
        corners[n] = x - across, corners[found + n] = y - down, corners[2 * found + n] = x + across, corners[3 * found + n] = y + down;
        cells[n] = cells[i], classes[n] = classes[i], scores[n] = score;
        n += fabsf(value) < INFINITY && score >= least;
    }
    return n;
}
#undef INSIDE
#undef JOINED
#undef JOIN
#undef NAMED
#undef T
#undef LOWEST
#undef IS_FINITE
#undef REAL
