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
/* The Python module. Its functions get arrays as buffers, and write results into the caller's arrays. */
#include "receiver.h"

#include <string.h>

#include "frames.h"
#include "masks.h"

/* The array buffers of one call, which are released together. */
enum { MOST_ARRAYS = 9 };
struct arrays {
    Py_buffer views[MOST_ARRAYS];
    int count;
};
static Py_buffer *look(struct arrays *arrays, PyObject *array, int flags) {
    Py_buffer *view = &arrays->views[arrays->count];
    if (PyObject_GetBuffer(array, view, flags) != 0) return NULL;
    arrays->count++;
    return view;
}
static void let_go(struct arrays *arrays) {
    while (arrays->count > 0) PyBuffer_Release(&arrays->views[--arrays->count]);
}
static int has_room(const Py_buffer *view, size_t count, size_t size) { return (size_t)view->len / size >= count; }
static PyObject *refuse(struct arrays *arrays, const char *text) {
    let_go(arrays);
    PyErr_SetString(PyExc_ValueError, text);
    return NULL;
}
static int type_of(const Py_buffer *view, enum zc_type *type) {
    static const char LETTERS[] = "fbBhH"; /* the types' letters, in the order of enum zc_type */
    const char *found = view->format == NULL || view->format[0] == '\0' || view->format[1] != '\0' ? NULL : strchr(LETTERS, view->format[0]);
    if (found == NULL) return 0;
    *type = (enum zc_type)(found - LETTERS);
    return 1;
}

/* Set *scores from an array (columns, classes) or (rows, columns, classes); 0: not supported, use NumPy. */
static int scores_of(const Py_buffer *values, struct zc_scores *scores) {
    if ((values->ndim != 2 && values->ndim != 3) || !type_of(values, &scores->type)) return 0;
    const Py_ssize_t *shape = values->shape, *strides = values->strides;
    const int last = values->ndim - 1;
    scores->data = values->buf;
    scores->rows = last == 2 ? (size_t)shape[0] : 1, scores->row = last == 2 ? strides[0] : 0;
    scores->columns = (size_t)shape[last - 1], scores->column = strides[last - 1];
    scores->classes = (size_t)shape[last], scores->class_ = strides[last];
    return 1;
}
static PyObject *ask_numpy(struct arrays *arrays) {
    let_go(arrays);
    return PyLong_FromLong(-1);
}
/* Return whether the three arrays of zc_find() have room for all cells. */
static int has_room_for(const struct zc_scores *scores, const Py_buffer *values, const Py_buffer *const room[3]) {
    const size_t cells = scores->rows * scores->columns;
    return has_room(room[0], cells, 8) && has_room(room[1], cells, 8) && has_room(room[2], cells, (size_t)values->itemsize);
}
static int letterbox_of(PyObject *words, struct zc_letterbox *box) {
    if (PyTuple_Check(words)) return PyArg_ParseTuple(words, "dddddd", &box->left, &box->top, &box->width, &box->height, &box->source_width, &box->source_height);
    PyErr_SetString(PyExc_ValueError, "the letterbox has to be a tuple of 6 numbers");
    return 0;
}

PyDoc_STRVAR(find_doc, "find(values, least, cells, classes, best) -> number of cells that reach least, or -1: ask NumPy. See decode.h.");
static PyObject *find(PyObject *module, PyObject *const *words, Py_ssize_t count) {
    struct arrays arrays = {.count = 0};
    struct zc_scores scores;
    (void)module;
    if (count != 5) return refuse(&arrays, "find() takes 5 arguments");
    const double least = PyFloat_AsDouble(words[1]);
    if (least == -1.0 && PyErr_Occurred()) return NULL;
    const Py_buffer *values = look(&arrays, words[0], PyBUF_STRIDES | PyBUF_FORMAT), *outs[3];
    for (int i = 0; values != NULL && i < 3; i++)
        if ((outs[i] = look(&arrays, words[2 + i], PyBUF_CONTIG)) == NULL) values = NULL;
    if (values == NULL) {
        let_go(&arrays);
        return NULL;
    }
    if (!scores_of(values, &scores)) return ask_numpy(&arrays);
    if (!has_room_for(&scores, values, outs)) return refuse(&arrays, "find() needs room for all cells");
    ptrdiff_t found;
    Py_BEGIN_ALLOW_THREADS
    found = zc_find(&scores, least, outs[0]->buf, outs[1]->buf, outs[2]->buf);
    Py_END_ALLOW_THREADS
    let_go(&arrays);
    return PyLong_FromSsize_t(found);
}

PyDoc_STRVAR(suppress_doc, "suppress(corners, scores, classes, letterbox, iou, places, sources) -> number of boxes that stay. See decode.h.");
static PyObject *suppress(PyObject *module, PyObject *const *words, Py_ssize_t count) {
    struct arrays arrays = {.count = 0};
    struct zc_boxes boxes = {.classes = NULL};
    struct zc_letterbox box;
    (void)module;
    if (count != 7) return refuse(&arrays, "suppress() takes 7 arguments");
    if (!letterbox_of(words[3], &box)) return NULL;
    const double iou = PyFloat_AsDouble(words[4]);
    if (iou == -1.0 && PyErr_Occurred()) return NULL;
    const Py_buffer *corners = look(&arrays, words[0], PyBUF_STRIDES), *scores = NULL, *classes = NULL, *places = NULL, *sources = NULL;
    if (corners == NULL || (scores = look(&arrays, words[1], PyBUF_CONTIG_RO)) == NULL ||
        (words[2] != Py_None && (classes = look(&arrays, words[2], PyBUF_CONTIG_RO)) == NULL) ||
        (places = look(&arrays, words[5], PyBUF_CONTIG)) == NULL || (sources = look(&arrays, words[6], PyBUF_CONTIG)) == NULL) {
        let_go(&arrays);
        return NULL;
    }
    boxes.count = (size_t)scores->len / sizeof(float);
    const size_t limit = (size_t)places->len / 8;
    if (corners->ndim != 2 || corners->itemsize != sizeof(float) || corners->shape[0] != 4 || (size_t)corners->shape[1] != boxes.count ||
        (boxes.count > 1 && corners->strides[1] != sizeof(float)) || corners->strides[0] % (Py_ssize_t)sizeof(float) != 0)
        return refuse(&arrays, "suppress() takes corners (4, n) of float32, each row of them contiguous");
    if ((classes != NULL && (size_t)classes->len / 8 != boxes.count) || !has_room(sources, limit, 4 * sizeof(float)) || boxes.count > UINT32_MAX)
        return refuse(&arrays, "suppress() takes as many classes as scores, and room for as many sources as places");
    boxes.corners = corners->buf, boxes.scores = scores->buf, boxes.classes = classes == NULL ? NULL : classes->buf;
    boxes.stride = corners->strides[0] / (Py_ssize_t)sizeof(float);
    ptrdiff_t stay;
    Py_BEGIN_ALLOW_THREADS
    stay = zc_suppress(&boxes, &box, (float)iou, limit, places->buf, sources->buf);
    Py_END_ALLOW_THREADS
    let_go(&arrays);
    return stay < 0 ? PyErr_NoMemory() : PyLong_FromSsize_t(stay);
}

/* Return whether the array's numbers have the type with this letter in formats of the Python module struct. */
static int is_plain(const Py_buffer *view, char letter) {
    return view->format != NULL && view->format[0] == letter && view->format[1] == '\0';
}
/* Check labels (rows, columns) of uint16; set *labels, and size to (columns, rows). */
static int look_at_labels(struct arrays *arrays, PyObject *array, struct zc_labels *labels, Py_ssize_t size[2]) {
    const Py_buffer *view = look(arrays, array, PyBUF_STRIDED | PyBUF_FORMAT);
    if (view == NULL || !is_plain(view, 'H') || view->ndim != 2 || view->strides[1] != 2 || view->strides[0] % 2 != 0 || (uintptr_t)view->buf % 2 != 0)
        return 0;
    labels->pixels = view->buf, labels->row = view->strides[0] / 2;
    size[0] = view->shape[1], size[1] = view->shape[0];
    return 1;
}
static const Py_buffer *look_at_places(struct arrays *arrays, PyObject *array, const Py_ssize_t size[2]) {
    const Py_buffer *view = look(arrays, array, PyBUF_CONTIG_RO | PyBUF_FORMAT);
    if (view == NULL || !is_plain(view, 'i') || view->len % 16 != 0) return NULL;
    const int32_t *place = view->buf;
    for (Py_ssize_t n = view->len / 16; n > 0; n--, place += 4)
        if (place[0] < 0 || place[1] < 0 || place[2] > size[0] || place[3] > size[1]) return NULL;
    return view;
}
PyDoc_STRVAR(wipe_doc, "wipe(labels, places): zero these rectangles. See masks.h.");
static PyObject *wipe(PyObject *module, PyObject *const *words, Py_ssize_t count) {
    struct arrays arrays = {.count = 0};
    struct zc_labels labels;
    Py_ssize_t size[2];
    const Py_buffer *places;
    (void)module;
    if (count != 2 || !look_at_labels(&arrays, words[0], &labels, size) || (places = look_at_places(&arrays, words[1], size)) == NULL)
        return refuse(&arrays, "wipe() takes labels (rows, columns) of uint16, and places (n, 4) of int32 inside them");
    zc_wipe(&labels, places->buf, (size_t)places->len / 16);
    let_go(&arrays);
    Py_RETURN_NONE;
}

/* Check the two arrays of an axis (see struct zc_axis) for `count` label pixels and `cells` pixels of the prototypes; set *axis. */
static int look_at_axis(struct arrays *arrays, PyObject *const *words, Py_ssize_t count, Py_ssize_t cells, struct zc_axis *axis) {
    const Py_buffer *before = look(arrays, words[0], PyBUF_CONTIG_RO | PyBUF_FORMAT), *share;
    if (before == NULL || (share = look(arrays, words[1], PyBUF_CONTIG_RO | PyBUF_FORMAT)) == NULL || !is_plain(before, 'i') ||
        !is_plain(share, 'f') || before->len != share->len || before->len / 4 != count)
        return 0;
    axis->before = before->buf, axis->share = share->buf, axis->count = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (axis->before[i] < (i == 0 ? 0 : axis->before[i - 1]) || axis->before[i] + 1 >= cells) return 0;
    return 1;
}

PyDoc_STRVAR(paint_doc, "paint(labels, boxes, prototypes, weights, offsets, columns, their shares, rows, their shares) -> whether it is "
                        "done; if not, ask NumPy. See masks.h.");
static PyObject *paint(PyObject *module, PyObject *const *words, Py_ssize_t count) {
    static const char TEXT[] = "paint() takes labels (rows, columns) of uint16, boxes (n, 4) of int32 inside them, prototypes (masks, "
                               "rows, columns), weights (n, masks) and offsets (n) of float32, and for each axis of the labels int32 and float32";
    struct arrays arrays = {.count = 0};
    struct zc_labels labels;
    struct zc_prototypes p;
    struct zc_axis axes[2];
    Py_ssize_t size[2];
    const Py_buffer *boxes, *grids, *weights, *offsets;
    (void)module;
    if (count != 9 || !look_at_labels(&arrays, words[0], &labels, size) || (boxes = look_at_places(&arrays, words[1], size)) == NULL ||
        (grids = look(&arrays, words[2], PyBUF_STRIDES | PyBUF_FORMAT)) == NULL || grids->ndim != 3 ||
        (weights = look(&arrays, words[3], PyBUF_CONTIG_RO | PyBUF_FORMAT)) == NULL || !is_plain(weights, 'f') ||
        (offsets = look(&arrays, words[4], PyBUF_CONTIG_RO | PyBUF_FORMAT)) == NULL || !is_plain(offsets, 'f') ||
        !look_at_axis(&arrays, words + 5, size[0], grids->shape[2], &axes[0]) || !look_at_axis(&arrays, words + 7, size[1], grids->shape[1], &axes[1]))
        return refuse(&arrays, TEXT);
    const Py_ssize_t n = boxes->len / 16, *shape = grids->shape, *strides = grids->strides;
    if (n > UINT16_MAX || offsets->len / 4 != n || weights->len / 4 != n * shape[0]) return refuse(&arrays, TEXT);
    p.data = grids->buf, p.masks = (size_t)shape[0], p.rows = (size_t)shape[1], p.columns = (size_t)shape[2];
    p.mask = strides[0], p.row = strides[1], p.column = strides[2];
    int done = 0;
    if (type_of(grids, &p.type)) {
        Py_BEGIN_ALLOW_THREADS
        done = zc_paint(&p, &axes[0], &axes[1], weights->buf, offsets->buf, boxes->buf, (size_t)n, &labels);
        Py_END_ALLOW_THREADS
    }
    let_go(&arrays);
    return done < 0 ? PyErr_NoMemory() : PyBool_FromLong(done);
}

PyDoc_STRVAR(decode_doc, "decode(scores, boxes, numbers, letterbox, class_agnostic, cells, classes, best, sources, kept_scores, kept_classes,\n"
                         "kept_cells) -> number of boxes that stay, or -1: ask NumPy. numbers: least, score, scale, zero, iou. See decode.h.");
static PyObject *decode(PyObject *module, PyObject *const *words, Py_ssize_t count) {
    struct arrays arrays = {.count = 0};
    struct zc_rows rows;
    struct zc_letterbox box;
    struct zc_wanted wanted;
    (void)module;
    if (count != 12) return refuse(&arrays, "decode() takes 12 arguments");
    if (!PyTuple_Check(words[2])) return refuse(&arrays, "decode() takes the numbers as a tuple of 5");
    if (!PyArg_ParseTuple(words[2], "dffff", &wanted.least, &wanted.score, &rows.scale, &rows.zero, &wanted.iou) || !letterbox_of(words[3], &box)) return NULL;
    wanted.class_agnostic = PyObject_IsTrue(words[4]);
    if (wanted.class_agnostic < 0) return NULL;
    const Py_buffer *seen[9];
    for (int i = 0; i < 9; i++) {
        seen[i] = look(&arrays, words[i < 2 ? i : i + 3], i < 2 ? PyBUF_STRIDES | PyBUF_FORMAT : PyBUF_CONTIG);
        if (seen[i] == NULL) {
            let_go(&arrays);
            return NULL;
        }
    }
    const Py_buffer *values = seen[0], *boxes = seen[1], *const *kept = seen + 5;
    enum zc_type type;
    if (values->ndim != 2 || !scores_of(values, &rows.scores)) return ask_numpy(&arrays);
    if (boxes->ndim != 2 || boxes->shape[0] != values->shape[0] || boxes->shape[1] != 4 || !type_of(boxes, &type) || type != rows.scores.type)
        return refuse(&arrays, "decode() takes as many boxes (n, 4) as scores (n, classes), of the same type");
    wanted.limit = (size_t)kept[3]->len / 8;
    if (!has_room_for(&rows.scores, values, seen + 2) || !has_room(kept[0], wanted.limit, 4 * sizeof(float)) ||
        !has_room(kept[1], wanted.limit, sizeof(float)) || !has_room(kept[2], wanted.limit, 8) || values->shape[0] > UINT32_MAX)
        return refuse(&arrays, "decode() needs room for all cells, and in sources, kept_scores and kept_classes for as many boxes as in kept_cells");
    rows.boxes = boxes->buf, rows.cell = boxes->strides[0], rows.number = boxes->strides[1];
    const struct zc_kept out = {kept[0]->buf, kept[1]->buf, kept[2]->buf, kept[3]->buf};
    ptrdiff_t stay;
    Py_BEGIN_ALLOW_THREADS
    stay = zc_decode(&rows, &box, &wanted, seen[2]->buf, seen[3]->buf, seen[4]->buf, &out);
    Py_END_ALLOW_THREADS
    let_go(&arrays);
    return stay == ZC_NO_MEMORY ? PyErr_NoMemory() : PyLong_FromSsize_t(stay);
}

/* The results of a detections message, serialized one after the other. Each has: leading bytes, the class's text, the score, GAP zero
 * bytes, the bytes before the box, and the box. */
enum { GAP = 48, NUMBERS = 5 };
static char *add(char *place, const PyObject *bytes) { return (char *)memcpy(place, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)) + PyBytes_GET_SIZE(bytes); }
static PyObject *text_of(PyObject *texts, Py_ssize_t class_) {
    PyObject *text = class_ < 0 || class_ >= PyList_GET_SIZE(texts) ? NULL : PyList_GET_ITEM(texts, class_);
    if (text == NULL || !PyBytes_Check(text)) return PyErr_Format(PyExc_IndexError, "class %zd is not one of the known classes", class_);
    return text;
}
PyDoc_STRVAR(upright_doc, "upright(boxes, scores, classes, (head, lead), (texts of the first result, of the others), middle) -> bytes, or\n"
                          "None: ask Python. nodes/messages.py does the same in Python.");
static PyObject *upright(PyObject *module, PyObject *words) {
    struct arrays arrays = {.count = 0};
    PyObject *given[3], *leads[2], *texts[2], *middle, *made = NULL;
    const Py_buffer *seen[3] = {NULL, NULL, NULL};
    (void)module;
    if (!PyArg_ParseTuple(words, "OOO(SS)(O!O!)S", &given[0], &given[1], &given[2], &leads[0], &leads[1], &PyList_Type, &texts[0], &PyList_Type, &texts[1], &middle))
        return NULL;
    for (int i = 0; i < 3; i++)
        if ((seen[i] = look(&arrays, given[i], PyBUF_CONTIG_RO | PyBUF_FORMAT)) == NULL) break;
    PyErr_Clear(); /* an array isn't contiguous */
    const Py_ssize_t count = seen[2] == NULL ? 0 : seen[1]->len / (Py_ssize_t)sizeof(float);
    if (seen[2] == NULL || !is_plain(seen[0], 'f') || !is_plain(seen[1], 'f') || seen[2]->itemsize != sizeof(Py_ssize_t) || seen[0]->len != count * 16 ||
        seen[2]->len != count * (Py_ssize_t)sizeof(Py_ssize_t)) {
        let_go(&arrays);
        Py_RETURN_NONE;
    }
    const Py_ssize_t *const classes = seen[2]->buf;
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; size >= 0 && i < count; i++) {
        const PyObject *text = text_of(texts[i > 0], classes[i]);
        size = text == NULL ? -1 : size + PyBytes_GET_SIZE(leads[i > 0]) + PyBytes_GET_SIZE(text) + GAP + PyBytes_GET_SIZE(middle) + 8 * (1 + NUMBERS);
    }
    if (size >= 0 && (made = PyBytes_FromStringAndSize(NULL, size)) != NULL) {
        char *place = PyBytes_AS_STRING(made);
        const float *box = seen[0]->buf, *score = seen[1]->buf;
        for (Py_ssize_t i = 0; i < count; i++, box += 4) {
            const double x[] = {box[0], box[1], box[2], box[3]}, sure = score[i];
            const double numbers[NUMBERS] = {(x[0] + x[2]) / 2, (x[1] + x[3]) / 2, 0.0, x[2] - x[0], x[3] - x[1]};
            place = add(add(place, leads[i > 0]), PyList_GET_ITEM(texts[i > 0], classes[i]));
            memcpy(place, &sure, sizeof sure);
            memset(place + sizeof sure, 0, GAP);
            place = add(place + sizeof sure + GAP, middle);
            place = (char *)memcpy(place, numbers, sizeof numbers) + sizeof numbers;
        }
    }
    let_go(&arrays);
    return made;
}

static PyMethodDef functions[] = {
    {"upright", upright, METH_VARARGS, upright_doc},
    {"decode", (PyCFunction)(void (*)(void))decode, METH_FASTCALL, decode_doc},
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, find_doc},
    {"suppress", (PyCFunction)(void (*)(void))suppress, METH_FASTCALL, suppress_doc},
    {"wipe", (PyCFunction)(void (*)(void))wipe, METH_FASTCALL, wipe_doc},
    {"paint", (PyCFunction)(void (*)(void))paint, METH_FASTCALL, paint_doc},
    {NULL, NULL, 0, NULL},
};
/* The same number as in __init__.py. */
enum { VERSION = 6 };
static int begin(PyObject *module) {
    return zc_add_receiver(module) != 0 || zc_add_steps(module) != 0 ? -1 : PyModule_AddIntConstant(module, "VERSION", VERSION);
}
static void end(void *module) { zc_clear_names(PyModule_GetState(module)); }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)begin}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "zc_perception.native.compiled", NULL, sizeof(struct zc_names), functions, slots,
                                        NULL, NULL, end};
PyMODINIT_FUNC PyInit_compiled(void);
PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
