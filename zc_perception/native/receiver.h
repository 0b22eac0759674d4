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
/* The Python type Receiver: it receives the frames of another process from a socket (rung shared_memory). client/src has the code of the wire
 * protocol, for this and for the C client. */
#ifndef ZC_NATIVE_RECEIVER_H
#define ZC_NATIVE_RECEIVER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The Python attributes that the receiver reads and sets, kept as interned strings. */
#define ZC_NAMES(X) \
    X(_slots) X(admitted) X(released) X(window) X(spare) X(retired) X(generation) X(leases) X(fences) X(sequence) X(since_ns) \
    X(data) X(header) X(_lease) X(ended) X(published_ns) X(stamp_ns) X(frame_id) X(captured_ns) X(capture_cost_ns) X(acquire_fence)
#define ZC_MEMBER(name) PyObject *name;
struct zc_names { ZC_NAMES(ZC_MEMBER) };

/* Receiver.wait(). */
PyObject *zc_wait(PyObject *receiver, PyObject *epoll, PyObject *timeout_s);
/* Receive a plain FRAME: return its Frame, and set *dropped. None: no packet is there. NULL without an exception: Python must handle the packet,
 * which Receiver.receive() then returns. Runs no Python code. */
PyObject *zc_receive(PyObject *receiver, PyObject *slots, unsigned *dropped);
/* Add the type to the module, whose state is a struct zc_names. Returns 0; -1: an exception is set. */
int zc_add_receiver(PyObject *module);
/* Release the names. */
void zc_clear_names(struct zc_names *names);

#endif
