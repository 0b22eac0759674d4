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
#define _GNU_SOURCE 1
#include "receiver.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "transport.h"


enum { TRUNCATED = MSG_TRUNC | MSG_CTRUNC };
struct receiver {
    PyObject_HEAD
    const struct zc_names *names;
    /* Guards all fields below except frame_id. It is held for at most one recvmsg, which doesn't wait. A thread that holds it never waits for the
     * interpreter's lock. */
    pthread_mutex_t lock;
    int sock;           /* borrowed; -1: closed */
    bool waits;         /* `came` has a packet that wait() has received and receive() hasn't taken yet */
    struct packet came;
    PyObject *unread;   /* called with each packet that Python must handle */
    PyObject *frame_id; /* the last frame's frame_id; the next frame nearly always has the same one */
};

/* Take the packet that wait() has received, or else read the socket; false: no packet is there. The socket's end counts as a packet. */
static bool take(struct receiver *self, struct packet *packet) {
    pthread_mutex_lock(&self->lock);
    if (self->waits) {
        const struct packet *came = &self->came; /* copy only the used bytes: the buffer is large, but most packets are small */
        packet->length = came->length, packet->num_fds = came->num_fds, packet->flags = came->flags, packet->error = came->error;
        memcpy(packet->bytes, came->bytes, came->length);
        memcpy(packet->fds, came->fds, sizeof came->fds);
        self->waits = false;
    } else transport_fetch(self->sock, packet);
    pthread_mutex_unlock(&self->lock);
    return packet->error != EAGAIN && packet->error != EWOULDBLOCK;
}

PyDoc_STRVAR(wait_doc, "wait(epoll, timeout_s): wait until epoll is readable, and read the socket's next packet for receive().");
PyObject *zc_wait(PyObject *object, PyObject *epoll_object, PyObject *timeout) {
    struct receiver *self = (struct receiver *)object;
    const int epoll = PyObject_AsFileDescriptor(epoll_object);
    if (epoll < 0) return NULL;
    const double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1.0 && PyErr_Occurred()) return NULL;
    const double least = timeout_s > 0 ? timeout_s < 1e6 ? timeout_s : 1e6 : 0;
    const struct timespec patience = {(time_t)least, (long)((least - (double)(time_t)least) * 1e9)};
    struct pollfd readable = {.fd = epoll, .events = POLLIN};
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    const bool waits = self->waits; /* true if a signal handler raised at the end of an earlier call */
    pthread_mutex_unlock(&self->lock);
    if (!waits && ppoll(&readable, 1, &patience, NULL) > 0) {
        pthread_mutex_lock(&self->lock);
        if (!self->waits) {
            transport_fetch(self->sock, &self->came);
            self->waits = self->came.error != EAGAIN && self->came.error != EWOULDBLOCK;
        }
        pthread_mutex_unlock(&self->lock);
    }
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() != 0) return NULL;
    Py_RETURN_NONE;
}
static PyObject *wait_for(PyObject *object, PyObject *const *words, Py_ssize_t count) {
    return count == 2 ? zc_wait(object, words[0], words[1]) : PyErr_Format(PyExc_TypeError, "wait() takes 2 arguments");
}

/* Return whether an attribute is true, 1 or 0; -1: an exception is set. */
static int is_set(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    const int set = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return set;
}
static bool number(PyObject *object, PyObject *name, long long *value) {
    PyObject *found = PyObject_GetAttr(object, name);
    *value = found == NULL ? -1 : PyLong_AsLongLong(found);
    Py_XDECREF(found);
    return !PyErr_Occurred();
}
/* Set an attribute, also of a frozen dataclass; this takes over the reference to value. false: an exception is set. */
static bool set(PyObject *object, PyObject *name, PyObject *value) {
    const int failed = value == NULL ? -1 : PyObject_GenericSetAttr(object, name, value);
    Py_XDECREF(value);
    return failed == 0;
}
static PyObject *known_frame_id(struct receiver *self, const char *text) {
    const char *before = self->frame_id == NULL ? NULL : PyUnicode_AsUTF8(self->frame_id);
    if (before == NULL || strcmp(before, text) != 0) Py_XSETREF(self->frame_id, PyUnicode_FromString(text));
    return Py_XNewRef(self->frame_id);
}
/* Return 1 if this FRAME is allowed; 0: the window is full, or the slot can't have this frame; -1: an exception is set. */
static int may_come(const struct zc_names *n, PyObject *slots, PyObject *slot, PyObject *generation, long long *admitted) {
    long long released, window;
    PyObject *before = PyObject_GetAttr(slot, n->generation);
    const int newer = before == NULL ? -1 : PyObject_RichCompareBool(before, generation, Py_LT);
    Py_XDECREF(before);
    if (newer <= 0) return newer;
    PyObject *const empty[] = {n->retired, n->leases, n->fences};
    for (int i = 0; i < 3; i++) {
        const int found = is_set(slot, empty[i]);
        if (found != 0) return found < 0 ? -1 : 0;
    }
    if (!number(slots, n->admitted, admitted) || !number(slots, n->released, &released) || !number(slots, n->window, &window)) return -1;
    return *admitted - released < window;
}
/* Fill the slot's prepared Frame with the fields of FRAME, as RemoteSlots.admit does; return the Frame. */
static PyObject *fill(struct receiver *self, PyObject *slots, PyObject *slot, const struct wire_frame *told, PyObject *generation, long long admitted) {
    const struct zc_names *n = self->names;
    PyObject *frame = PyObject_GetAttr(slot, n->spare), *data = NULL, *header = NULL, *lease = NULL, *found = NULL;
    if (frame == Py_None) return Py_DECREF(frame), NULL; /* Python prepares one */
    if (frame != NULL && (data = PyObject_GetAttr(frame, n->data)) != NULL && (header = PyObject_GetAttr(data, n->header)) != NULL &&
        (lease = PyObject_GetAttr(frame, n->_lease)) != NULL && set(slots, n->admitted, PyLong_FromLongLong(admitted + 1)) &&
        set(slot, n->generation, Py_NewRef(generation)) && set(slot, n->sequence, PyLong_FromUnsignedLongLong(told->sequence)) &&
        set(slot, n->since_ns, PyLong_FromLongLong(transport_now_ns())) && set(slot, n->leases, PyLong_FromLong(1)) &&
        set(slot, n->spare, Py_NewRef(Py_None)) && set(header, n->stamp_ns, PyLong_FromLongLong(told->stamp_ns)) &&
        set(header, n->frame_id, known_frame_id(self, told->frame_id)) && set(data, n->generation, Py_NewRef(generation)) &&
        set(data, n->sequence, PyLong_FromUnsignedLongLong(told->sequence)) &&
        set(data, n->captured_ns, PyLong_FromLongLong(told->captured_ns)) &&
        set(data, n->capture_cost_ns, PyLong_FromUnsignedLongLong(told->capture_cost_ns)) && set(data, n->acquire_fence, Py_NewRef(Py_None)) &&
        set(lease, n->generation, Py_NewRef(generation)) && set(lease, n->ended, Py_NewRef(Py_False)) &&
        set(frame, n->published_ns, PyLong_FromLongLong(told->published_ns)))
        found = Py_NewRef(frame);
    Py_XDECREF(frame);
    Py_XDECREF(data);
    Py_XDECREF(header);
    Py_XDECREF(lease);
    return found;
}
/* Return the Frame for a valid FRAME without a fence. NULL without an exception: Python must handle the packet. */
static PyObject *admit(struct receiver *self, PyObject *slots, const struct packet *packet, unsigned *dropped) {
    struct wire_fault fault;
    struct wire_frame told;
    enum wire_type type;
    if (packet->num_fds > 0 || packet->flags & TRUNCATED || !wire_parse_header(packet->bytes, packet->length, true, &type, &fault) || type != WIRE_FRAME ||
        !wire_parse_frame(packet->bytes, packet->length, &told, &fault) || told.fence || strlen(told.frame_id) != packet->length - 72)
        return NULL;
    PyObject *uid = PyLong_FromUnsignedLongLong(told.uid), *generation = PyLong_FromUnsignedLongLong(told.generation), *found = NULL;
    PyObject *table = PyObject_GetAttr(slots, self->names->_slots);
    PyObject *slot = uid == NULL || generation == NULL || table == NULL ? NULL : PyDict_GetItemWithError(table, uid);
    long long admitted;
    Py_XINCREF(slot);
    if (slot != NULL && may_come(self->names, slots, slot, generation, &admitted) > 0) found = fill(self, slots, slot, &told, generation, admitted);
    Py_XDECREF(slot);
    Py_XDECREF(table);
    Py_XDECREF(uid);
    Py_XDECREF(generation);
    *dropped = found == NULL ? 0 : told.dropped;
    return found;
}
/* Call unread(packet, descriptors, truncated, errno), which takes over the descriptors; return its result. */
static PyObject *as_it_came(struct receiver *self, struct packet *packet) {
    PyObject *words = NULL, *fds = PyList_New((Py_ssize_t)packet->num_fds), *truncated = packet->flags & TRUNCATED ? Py_True : Py_False;
    for (size_t i = 0; fds != NULL && i < packet->num_fds; i++) {
        PyObject *fd = PyLong_FromLong(packet->fds[i]);
        if (fd == NULL) Py_CLEAR(fds);
        else PyList_SET_ITEM(fds, (Py_ssize_t)i, fd);
    }
    if (fds != NULL) words = Py_BuildValue("y#OOi", (const char *)packet->bytes, (Py_ssize_t)packet->length, fds, truncated, packet->error);
    Py_XDECREF(fds);
    if (words == NULL) {
        transport_close_fds(packet);
        return NULL;
    }
    PyObject *found = PyObject_CallObject(self->unread, words);
    Py_DECREF(words);
    return found;
}

PyDoc_STRVAR(receive_doc, "receive(slots) -> (frame, dropped) for a plain FRAME; for another packet the result of unread(packet,\n"
                          "descriptors, truncated, errno); None: no packet waits. Never waits. See remote_slots.PlainReceiver.");
static PyObject *receive(PyObject *object, PyObject *slots) {
    struct receiver *self = (struct receiver *)object;
    struct packet packet;
    unsigned dropped;
    if (!take(self, &packet)) Py_RETURN_NONE;
    PyObject *frame = admit(self, slots, &packet, &dropped);
    if (frame != NULL) return Py_BuildValue("NI", frame, dropped);
    if (!PyErr_Occurred()) return as_it_came(self, &packet);
    transport_close_fds(&packet);
    return NULL;
}

PyObject *zc_receive(PyObject *object, PyObject *slots, unsigned *dropped) {
    struct receiver *self = (struct receiver *)object;
    pthread_mutex_lock(&self->lock);
    if (!self->waits) {
        transport_fetch(self->sock, &self->came);
        self->waits = self->came.error != EAGAIN && self->came.error != EWOULDBLOCK;
    }
    const bool waits = self->waits; /* if true, only this thread changes `came`, because it has the interpreter's lock */
    pthread_mutex_unlock(&self->lock);
    if (!waits) Py_RETURN_NONE;
    PyObject *frame = admit(self, slots, &self->came, dropped);
    if (frame == NULL) return NULL;
    pthread_mutex_lock(&self->lock);
    self->waits = false;
    pthread_mutex_unlock(&self->lock);
    return frame;
}

PyDoc_STRVAR(close_doc, "close(): stop receiving. The caller closes the socket after this. A second call does nothing.");
static PyObject *close_it(PyObject *object, PyObject *none) {
    struct receiver *self = (struct receiver *)object;
    (void)none;
    pthread_mutex_lock(&self->lock);
    self->sock = -1;
    if (self->waits) transport_close_fds(&self->came);
    self->waits = false;
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}
PyDoc_STRVAR(forked_doc, "forked(): the same as close(), for a forked child, in which the lock may be held by no living thread.");
static PyObject *forked(PyObject *object, PyObject *none) {
    pthread_mutex_init(&((struct receiver *)object)->lock, NULL);
    return close_it(object, none);
}

static PyObject *make(PyTypeObject *type, PyObject *words, PyObject *named) {
    int sock;
    PyObject *unread;
    const struct zc_names *names = PyType_GetModuleState(type);
    if (named != NULL && PyDict_GET_SIZE(named) > 0) return PyErr_Format(PyExc_TypeError, "Receiver() takes no keyword arguments");
    if (names == NULL || !PyArg_ParseTuple(words, "iO:Receiver", &sock, &unread)) return NULL;
    struct receiver *self = (struct receiver *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->names = names;
    self->sock = sock;
    self->unread = Py_NewRef(unread);
    pthread_mutex_init(&self->lock, NULL);
    return (PyObject *)self;
}
static void end(PyObject *object) {
    struct receiver *self = (struct receiver *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->waits) transport_close_fds(&self->came);
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF(self->frame_id);
    Py_XDECREF(self->unread);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"wait", (PyCFunction)(void (*)(void))wait_for, METH_FASTCALL, wait_doc},
    {"receive", receive, METH_O, receive_doc},
    {"close", close_it, METH_NOARGS, close_doc},
    {"forked", forked, METH_NOARGS, forked_doc},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots_of_type[] = {
    {Py_tp_doc, (void *)"Receiver(socket's descriptor, unread): receives frames of another process."},
    {Py_tp_new, (void *)make},
    {Py_tp_dealloc, (void *)end},
    {Py_tp_methods, methods},
    {0, NULL},
};
static PyType_Spec spec = {"zc_perception.native.compiled.Receiver", sizeof(struct receiver), 0, Py_TPFLAGS_DEFAULT, slots_of_type};

int zc_add_receiver(PyObject *module) {
    struct zc_names *names = PyModule_GetState(module);
#define ZC_INTERN(name) \
    if ((names->name = PyUnicode_InternFromString(#name)) == NULL) return -1;
    ZC_NAMES(ZC_INTERN)
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    const int failed = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed;
}
void zc_clear_names(struct zc_names *names) {
#define ZC_CLEAR(name) Py_CLEAR(names->name);
    ZC_NAMES(ZC_CLEAR)
}
