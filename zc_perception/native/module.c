/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's face of what is compiled: arrays come as buffers, and results go into arrays that the caller has made. */
#include "receiver.h"

#include <string.h>

#include "decode.h"

/* The arrays of one call, which are let go together. */
enum { MOST_ARRAYS = 5 };
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
    static const char LETTERS[] = "fbBhH"; /* in the order of enum zc_type */
    const char *found = view->format == NULL || view->format[0] == '\0' || view->format[1] != '\0' ? NULL : strchr(LETTERS, view->format[0]);
    if (found == NULL) return 0;
    *type = (enum zc_type)(found - LETTERS);
    return 1;
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
    if ((values->ndim != 2 && values->ndim != 3) || !type_of(values, &scores.type)) {
        let_go(&arrays);
        return PyLong_FromLong(-1);
    }
    const Py_ssize_t *shape = values->shape, *strides = values->strides;
    const int last = values->ndim - 1;
    scores.data = values->buf;
    scores.rows = last == 2 ? (size_t)shape[0] : 1, scores.row = last == 2 ? strides[0] : 0;
    scores.columns = (size_t)shape[last - 1], scores.column = strides[last - 1];
    scores.classes = (size_t)shape[last], scores.class_ = strides[last];
    const size_t cells = scores.rows * scores.columns;
    if (!has_room(outs[0], cells, 8) || !has_room(outs[1], cells, 8) || !has_room(outs[2], cells, (size_t)values->itemsize))
        return refuse(&arrays, "find() needs room for all cells");
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
    if (!PyTuple_Check(words[3]) || !PyArg_ParseTuple(words[3], "dddddd", &box.left, &box.top, &box.width, &box.height, &box.source_width, &box.source_height))
        return PyErr_Occurred() ? NULL : refuse(&arrays, "suppress() takes the letterbox as a tuple of 6 numbers");
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
        return refuse(&arrays, "suppress() takes corners (4, n) of float32, those of all boxes side by side");
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

static PyMethodDef functions[] = {
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, find_doc},
    {"suppress", (PyCFunction)(void (*)(void))suppress, METH_FASTCALL, suppress_doc},
    {NULL, NULL, 0, NULL},
};
/* As in __init__.py. */
enum { VERSION = 2 };
static int begin(PyObject *module) { return zc_add_receiver(module) != 0 ? -1 : PyModule_AddIntConstant(module, "VERSION", VERSION); }
static void end(void *module) { zc_clear_names(PyModule_GetState(module)); }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)begin}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "zc_perception.native.compiled", NULL, sizeof(struct zc_names), functions, slots,
                                        NULL, NULL, end};
PyMODINIT_FUNC PyInit_compiled(void);
PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
