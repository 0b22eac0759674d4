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
/*
 * Compiled steps for frames: each replaces a function of frame.py and memory/pool.py (frames.c, views.c), or of the link between threads
 * and processes (links.c).
 *
 * A step does the usual case itself, and calls its Python function in all other cases: other arguments, a refusal, an error, a fence, or
 * a thread that waits for the pool. The classes stay Python classes; a step reads and writes their __slots__ by offset. A step changes a
 * pool or connection only while no thread holds its lock, and runs no Python code between its check and its last change. So for other
 * threads the change has the same effect as if it was made under that lock.
 */
#ifndef ZC_NATIVE_FRAMES_H
#define ZC_NATIVE_FRAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The fields that steps read or write, each with its class. */
#define ZC_SLOT_FIELDS(X) \
    X(Slot, index) X(Slot, buffers) X(Slot, buffer_uid) X(Slot, layout) X(Slot, generation) X(Slot, state) X(Slot, leases) X(Slot, fences) \
    X(Slot, pins) X(Slot, condemned) X(Slot, since) X(Slot, sequence)
#define ZC_HOLDER_FIELDS(X) \
    X(Holder, name) X(Holder, frames) X(Holder, number) X(Holder, depth) X(Holder, limit) X(Holder, lossless) X(Holder, refused) \
    X(Holder, wants) X(Holder, on_room)
#define ZC_LEASE_FIELDS(X) \
    X(Lease, pool) X(Lease, slot) X(Lease, generation) X(Lease, number) X(Lease, account) X(Lease, since) X(Lease, uses) X(Lease, handed) \
    X(Lease, ended)
#define ZC_FRAME_FIELDS(X) \
    X(Frame, data) X(Frame, published_ns) X(Frame, _lease) X(Frame, _live) X(Frame, _mappings) X(Frame, _borrowed) X(Frame, _process)
#define ZC_MAPPING_FIELDS(X) \
    X(FrameMapping, _access) X(FrameMapping, _buffers) X(FrameMapping, _layout) X(FrameMapping, _live) X(FrameMapping, _roots) X(FrameMapping, _synced) X(FrameMapping, _views) \
    X(FrameMapping, _frame)
#define ZC_POOL_FIELDS(X) \
    X(BufferPool, name) X(BufferPool, _uid) X(BufferPool, _forked) X(BufferPool, _closed) X(BufferPool, _lock) X(BufferPool, _holders) X(BufferPool, _lease_numbers) X(BufferPool, _news) \
    X(BufferPool, _waiting) X(BufferPool, _missing) X(BufferPool, _abandoned_leases) X(BufferPool, _free) X(BufferPool, _slots) X(BufferPool, _on_free) X(BufferPool, _waker)
#define ZC_LINK_FIELDS(X) \
    X(KeepLastQueue, _entries) X(KeepLastQueue, _tokens) X(KeepLastQueue, _turn) X(KeepLastQueue, _depth) X(KeepLastQueue, _lock) X(KeepLastQueue, _fetching) X(KeepLastQueue, _event) \
    X(KeepLastQueue, _signalled) X(KeepLastQueue, _receivers) X(KeepLastQueue, _wait) X(KeepLastQueue, _epoll) X(KeepLastQueue, closed) X(KeepLastQueue, _refusing) X(KeepLastQueue, _gate) \
    X(KeepLastQueue, _shut) \
    X(Connection, holder) X(Connection, failure) X(Connection, socket) X(Connection, _send) X(Connection, _window) X(Connection, _lock) X(Connection, _ended) X(Connection, _out) \
    X(Connection, _pending) X(Connection, _introduced) X(Connection, _sent) X(Connection, _dropped_untold) X(Connection, _frame_id) X(Connection, _packet) X(Connection, _length) \
    X(SharedMemoryClient, _lock) X(SharedMemoryClient, _slots) X(SharedMemoryClient, _received) X(SharedMemoryClient, dropped) \
    X(AdaptedPublisher, _adapter) X(AdaptedPublisher, _shared_memory) X(AdaptedPublisher, _bus_publisher) X(AdaptedPublisher, messages) X(AdaptedPublisher, _published) \
    X(AdaptedPublisher, _closed) \
    X(_Link, client) X(_Link, _accept) X(_Link, _seen)
#define ZC_FIELDS(X) ZC_SLOT_FIELDS(X) ZC_HOLDER_FIELDS(X) ZC_LEASE_FIELDS(X) ZC_FRAME_FIELDS(X) ZC_POOL_FIELDS(X) ZC_MAPPING_FIELDS(X) ZC_LINK_FIELDS(X)
#define ZC_FIELD(owner, name) owner##_##name,
enum zc_field { ZC_FIELDS(ZC_FIELD) ZC_FIELD_COUNT };

/* Add the type Step and the functions take_over() and join() to the module. Returns 0; -1: an exception is set. */
int zc_add_steps(PyObject *module);

#endif
