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
/* Steps of Frame.map() and the FrameMapping that it returns (frame.py, mapping.py). */
#include "steps.h"

STEP(zc_frame_map) {
    KNOWN(1);
    PyObject *const frame = words[0];
    if (!plain || !is(frame, k->has.Frame)) return in_python(step, words, count, names);
    PyTypeObject *type = (PyTypeObject *)k->has.FrameMapping;
    PyObject *mapping = type->tp_alloc(type, 0), *const data = AT(frame, Frame_data);
    if (mapping == NULL) return NULL;
    AT(mapping, FrameMapping__layout) = PyObject_GetAttr(data, k->has.layout);
    AT(mapping, FrameMapping__buffers) = PyObject_GetAttr(data, k->has.buffers);
    AT(mapping, FrameMapping__access) = Py_NewRef(k->has.read);
    AT(mapping, FrameMapping__live) = Py_NewRef(AT(frame, Frame__live));
    AT(mapping, FrameMapping__synced) = PyList_New(0);
    AT(mapping, FrameMapping__roots) = PyList_New(0);
    AT(mapping, FrameMapping__views) = Py_NewRef(Py_None);
    AT(mapping, FrameMapping__frame) = Py_NewRef(frame);
    if (AT(mapping, FrameMapping__layout) == NULL || AT(mapping, FrameMapping__buffers) == NULL || AT(mapping, FrameMapping__synced) == NULL ||
        AT(mapping, FrameMapping__roots) == NULL)
        Py_CLEAR(mapping);
    return mapping;
}

/* Return whether the lease is valid; it is a pool's lease, or a lease on another process's slot. */
static bool is_valid(const struct known *k, PyObject *lease) {
    if (is(lease, k->has.Lease))
        return PyObject_Size(AT(lease, Lease_ended)) == 0 && are_equal(AT(AT(lease, Lease_slot), Slot_generation), AT(lease, Lease_generation));
    PyObject *ended = PyObject_GetAttr(lease, k->has.ended), *slot = PyObject_GetAttr(lease, k->has.slot), *own = PyObject_GetAttr(lease, k->has.generation);
    PyObject *now = slot == NULL ? NULL : PyObject_GetAttr(slot, k->has.generation);
    const bool valid = ended == Py_False && own != NULL && now != NULL && are_equal(now, own);
    Py_XDECREF(ended);
    Py_XDECREF(slot);
    Py_XDECREF(own);
    Py_XDECREF(now);
    return valid;
}
/* Make an array over each buffer, as PlaneViews._begin() does for memory that the CPU can read; false: another case, or an exception. */
static bool begin(const struct known *k, PyObject *mapping) {
    PyObject *const layout = AT(mapping, FrameMapping__layout), *const buffers = AT(mapping, FrameMapping__buffers);
    PyObject *modifier = PyObject_GetAttr(layout, k->has.modifier), *planes = PyObject_GetAttr(layout, k->has.planes), *views = NULL;
    PyObject *const dmabuf = PyDict_GetItemWithError(k->has.mappings, k->has._DMABUF);
    bool good = dmabuf != NULL && modifier != NULL && planes != NULL && PyLong_CheckExact(modifier) && value(modifier) == 0 && PyTuple_CheckExact(buffers);
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(buffers); i++) {
        PyObject *buffer = PyTuple_GET_ITEM(buffers, i), *memory = PyObject_GetAttr(buffer, k->has.read_memory), *kind = PyObject_GetAttr(buffer, k->has.kind);
        PyObject *const its[] = {memory, k->has.uint8};
        PyObject *root = memory != NULL && memory != Py_None && kind != NULL && kind != dmabuf ? PyObject_Vectorcall(k->has.frombuffer, its, 2, NULL) : NULL;
        good = root != NULL && PyList_Append(AT(mapping, FrameMapping__roots), root) == 0;
        Py_XDECREF(root);
        Py_XDECREF(memory);
        Py_XDECREF(kind);
    }
    const Py_ssize_t number = good ? PyObject_Size(planes) : -1;
    if (number >= 0 && (views = PyList_New(number)) != NULL)
        for (Py_ssize_t i = 0; i < number; i++) PyList_SET_ITEM(views, i, Py_NewRef(Py_None));
    if (views != NULL) put(&AT(mapping, FrameMapping__views), views);
    Py_XDECREF(modifier);
    Py_XDECREF(planes);
    return views != NULL;
}
/* Remove the first None of the frame's list of mappings. */
static void unregister(const struct known *k, PyObject *frame) {
    PyObject *const mappings = AT(frame, Frame__mappings);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(mappings); i++)
        if (PyList_GET_ITEM(mappings, i) == Py_None) {
            PyList_SetSlice(mappings, i, i + 1, NULL);
            return;
        }
}
static bool is_open(const struct known *k, PyObject *frame) {
    PyObject *process = PyDict_GetItemWithError(k->has.frames, k->has._process);
    return process != NULL && AT(frame, Frame__lease) != Py_None && are_equal(AT(frame, Frame__process), process);
}
STEP(zc_mapping_enter) {
    KNOWN(1);
    PyObject *const mapping = words[0];
    if (!plain || !is(mapping, k->has.FrameMapping) || !is(AT(mapping, FrameMapping__frame), k->has.Frame) ||
        AT(mapping, FrameMapping__views) != Py_None || AT(mapping, FrameMapping__access) != k->has.read || !is_empty(AT(mapping, FrameMapping__roots)))
        return in_python(step, words, count, names);
    PyObject *frame = Py_NewRef(AT(mapping, FrameMapping__frame)), *fence = PyObject_GetAttr(AT(frame, Frame_data), k->has.acquire_fence);
    /* As in the Python function, register the mapping first, and check the lease afterwards. */
    if (fence == Py_None && is_open(k, frame) && PyList_Append(AT(frame, Frame__mappings), Py_None) == 0) {
        PyObject *lease = Py_NewRef(AT(frame, Frame__lease));
        const bool begun = lease != Py_None && is_valid(k, lease) && begin(k, mapping);
        Py_DECREF(lease);
        if (begun) {
            Py_DECREF(fence);
            Py_DECREF(frame);
            return Py_NewRef(mapping);
        }
        PyErr_Clear(); /* the Python function tries again, and raises the error */
        PyList_SetSlice(AT(mapping, FrameMapping__roots), 0, PY_SSIZE_T_MAX, NULL);
        unregister(k, frame);
    }
    Py_XDECREF(fence);
    Py_DECREF(frame);
    return in_python(step, words, count, names);
}
STEP(zc_mapping_exit) {
    KNOWN(4);
    PyObject *const mapping = words[0];
    if (!plain || !is(mapping, k->has.FrameMapping) || !is(AT(mapping, FrameMapping__frame), k->has.Frame) ||
        AT(AT(mapping, FrameMapping__frame), Frame__borrowed) == Py_None || !is_empty(AT(mapping, FrameMapping__synced)))
        return in_python(step, words, count, names);
    put(&AT(mapping, FrameMapping__views), Py_NewRef(Py_None));
    PyObject *const roots = AT(mapping, FrameMapping__roots);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); i++)
        if (Py_REFCNT(PyList_GET_ITEM(roots, i)) != 1) return in_python(step, words, count, names); /* the user still has an array */
    if (PyList_SetSlice(roots, 0, PY_SSIZE_T_MAX, NULL) != 0) return NULL;
    PyObject *frame = Py_NewRef(AT(mapping, FrameMapping__frame));
    put(&AT(mapping, FrameMapping__frame), Py_NewRef(Py_None));
    unregister(k, frame);
    /* The link may have asked meanwhile, while an array was freed, to end the frame with its last mapping. */
    const int open = AT(frame, Frame__borrowed) == Py_None ? PySequence_Contains(AT(frame, Frame__mappings), Py_None) : 1;
    PyObject *ended = open == 0 ? PyObject_CallMethodNoArgs(frame, k->has._end_with_views) : open < 0 ? NULL : Py_NewRef(Py_None);
    Py_DECREF(frame);
    return ended == NULL ? NULL : (Py_DECREF(ended), Py_NewRef(Py_None));
}
STEP(zc_mapping_item) {
    KNOWN(2);
    PyObject *const mapping = words[0];
    if (!plain || !is(mapping, k->has.FrameMapping) || !PyLong_CheckExact(words[1])) return in_python(step, words, count, names);
    PyObject *arrays = PyObject_GetAttr(AT(mapping, FrameMapping__layout), k->has.arrays), *views = Py_NewRef(AT(mapping, FrameMapping__views)), *view = NULL;
    const long long i = value(words[1]);
    if (arrays != NULL && PyList_CheckExact(views) && i >= 0 && i < PyList_GET_SIZE(views)) {
        view = Py_NewRef(PyList_GET_ITEM(views, i));
        PyObject *array = PyTuple_Check(arrays) && i < PyTuple_GET_SIZE(arrays) ? PyTuple_GET_ITEM(arrays, i) : NULL, *const roots = AT(mapping, FrameMapping__roots);
        const long long buffer = array != NULL && PyTuple_Check(array) && PyTuple_GET_SIZE(array) == 5 ? value(PyTuple_GET_ITEM(array, 0)) : -1;
        if (view == Py_None) {
            Py_CLEAR(view);
            if (buffer >= 0 && buffer < PyList_GET_SIZE(roots)) {
                PyObject *root = Py_NewRef(PyList_GET_ITEM(roots, buffer)); /* another thread may end this mapping during the call */
                PyObject *const its[] = {PyTuple_GET_ITEM(array, 1), PyTuple_GET_ITEM(array, 2), root, PyTuple_GET_ITEM(array, 3), PyTuple_GET_ITEM(array, 4)};
                view = PyObject_Vectorcall(k->has.ndarray, its, 5, NULL);
                Py_DECREF(root);
            }
            if (view != NULL && PyList_SetItem(views, i, Py_NewRef(view)) != 0) Py_CLEAR(view);
        }
    }
    Py_XDECREF(arrays);
    Py_DECREF(views);
    return view != NULL ? view : in_python(step, words, count, names);
}
