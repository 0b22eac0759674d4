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
/* Shared by the files of compiled steps (see frames.h): the fields and names that were looked up, and short functions. */
#ifndef ZC_NATIVE_STEPS_H
#define ZC_NATIVE_STEPS_H

#include <limits.h>
#include <stdbool.h>

#include "frames.h"

/* Names of functions, attributes and keyword arguments, kept as Python strings. */
#define ZC_WORDS(X) \
    X(time) X(monotonic) X(_process) X(locked) X(empty) X(_call) X(on_free) X(released) X(header) X(layout) X(buffers) X(colorimetry) X(buffer_uid) \
    X(generation) X(sequence) X(captured_ns) X(capture_cost_ns) X(acquire_fence) X(frame_id) X(stamp_ns) X(attention) X(receiver) X(acquire) X(release) \
    X(get) X(put) X(append) X(popleft) X(owing) X(_pop) X(ended) X(slot) X(modifier) X(planes) X(read_memory) X(kind) X(arrays) X(_DMABUF) X(headers) \
    X(by_message) X(deliver) X(_in_place_of_oldest) X(refused) X(delivered) X(queue) X(notify) X(pool_of) X(_pool) X(qos) X(transient_local) X(_served) \
    X(_history) X(_connections) X(offer) X(publish) X(write) X(custom_type) X(_end_with_views)
#define ZC_LINK_CLASSES(X) X(KeepLastQueue) X(Connection) X(SharedMemoryClient) X(_Link) X(BusPublisher) X(SharedMemoryServer) X(AdaptedPublisher)
#define ZC_WORD(name) PyObject *name;
/* The objects and offsets that take_over() and join() look up once for all steps. */
struct known {
    Py_ssize_t at[ZC_FIELD_COUNT]; /* offset of each field in its object */
    struct objects {
        PyObject *frames, *pools;                 /* the globals of frame.py and pool.py */
        PyObject *Frame, *FrameData, *BufferPool, *Slot, *Lease, *Holder, *FrameMapping, *clock;
        PyObject *a_frame, *a_lease, *a_holder;   /* objects made by Python; new objects begin as copies of these */
        PyObject *is_free, *is_filling, *is_leased; /* states of a slot */
        PyObject *nothing, *owing_only;             /* (), ('owing',) */
        PyObject *read, *mappings;                  /* CpuAccess.READ, the globals of mapping.py */
        PyObject *frombuffer, *ndarray, *uint8;     /* of NumPy */
        PyObject *Receiver, *Empty;                 /* Empty: of the module queue */
        ZC_LINK_CLASSES(ZC_WORD) /* NULL until join() */
        ZC_WORDS(ZC_WORD)
    } has;
};
struct step {
    PyObject_HEAD
    vectorcallfunc call;
    /* the Python function that the step replaces, and the capsule that owns `known` */
    PyObject *plain, *keeper, *weak; /* weak: as a function, a step may be the target of weak references, such as weakref.WeakMethod */
    const struct known *known;
};
#define AT(object, field) (*(PyObject **)((char *)(object) + k->at[field]))

/* Call the Python function, because this isn't the usual case; if there is an exception, return NULL. In an unusual case the functions below return
 * NULL without an exception, and have changed nothing. */
static inline PyObject *in_python(PyObject *step, PyObject *const *words, size_t count, PyObject *names) {
    return PyErr_Occurred() ? NULL : PyObject_Vectorcall(((struct step *)step)->plain, words, count, names);
}
static inline void put(PyObject **place, PyObject *value) { Py_XSETREF(*place, value); }
static inline bool is(PyObject *object, PyObject *type) { return object != NULL && Py_TYPE(object) == (PyTypeObject *)type; }
static inline bool is_empty(PyObject *list) { return list != NULL && PyList_CheckExact(list) && PyList_GET_SIZE(list) == 0; }
/* Return a Python number as a C number; one that is too large becomes LLONG_MAX. */
static inline long long value(PyObject *number) {
    int overflow;
    const long long found = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow > 0 ? LLONG_MAX : found;
}
static inline bool are_equal(PyObject *a, PyObject *b) {
    return a == b || (PyLong_CheckExact(a) && PyLong_CheckExact(b) && PyObject_RichCompareBool(a, b, Py_EQ) == 1);
}
/* Return whether a method of a C object, which runs no Python code, returns `wanted`. */
static inline bool says(PyObject *object, PyObject *method, PyObject *wanted) {
    PyObject *said = PyObject_CallMethodNoArgs(object, method);
    Py_XDECREF(said);
    return said == wanted;
}
/* Return whether this code may change the pool now: the process wasn't forked, and no thread holds the pool's lock. This stays true until Python code
 * runs. */
static inline bool is_ours(const struct known *k, PyObject *pool) {
    return AT(pool, BufferPool__forked) == Py_False && says(AT(pool, BufferPool__lock), k->has.locked, Py_False);
}

/* A lease that isn't in its pool yet. It is made before anything is changed: making objects may run the garbage collector, and so Python code. */
struct new_lease { PyObject *lease, *holder; };
bool zc_make_lease(const struct known *k, PyObject *pool, PyObject *name, struct new_lease *made);
/* Return the account (borrowed) of the holder that may get this lease; NULL: refused, or an exception. The result is valid until Python code runs. */
PyObject *zc_account_for(const struct known *k, PyObject *pool, PyObject *slot, PyObject *generation, PyObject *name, const struct new_lease *made);
/* Add the lease to the pool and to that account; false: no memory. */
bool zc_enter_lease(const struct known *k, PyObject *pool, PyObject *slot, PyObject *name, const struct new_lease *made, PyObject *account);
PyObject *zc_new_frame(const struct known *k);

#define STEP(name) PyObject *name(PyObject *step, PyObject *const *words, size_t count, PyObject *names)
/* Declare k, and plain: whether exactly `number` positional arguments were given, and no keyword arguments. */
#define KNOWN(number) \
    const struct known *const k = ((struct step *)step)->known; \
    const bool plain = PyVectorcall_NARGS(count) == (number) && names == NULL

/* The steps of the other files, by the function that they replace. */
STEP(zc_frame_map);
STEP(zc_mapping_enter);
STEP(zc_mapping_exit);
STEP(zc_mapping_item);
STEP(zc_queue_put);
STEP(zc_queue_get);
STEP(zc_connection_offer);
STEP(zc_client_wait);
STEP(zc_bus_publish);
STEP(zc_publisher_publish);
STEP(zc_link_receive);

#endif
