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
/* Steps of the link between threads and processes: frame_queue.py, link/shared_memory/connection.py and client.py, endpoints/remote_links.py. */
#include "steps.h"

#include <string.h>
#include <sys/socket.h>

#include "receiver.h"
#include "transport.h"

static double seconds(void) { return (double)transport_now_ns() / 1e9; }
static bool is_unlocked(const struct known *k, PyObject *lock) { return says(lock, k->has.locked, Py_False); }
/* Acquire a lock, and wait if another thread has it; false: an exception is set. */
static bool take(const struct known *k, PyObject *lock) {
    PyObject *taken = PyObject_CallMethodNoArgs(lock, k->has.acquire);
    Py_XDECREF(taken);
    return taken != NULL;
}
/* Release a lock, also if an exception is set. */
static void let_go(const struct known *k, PyObject *lock) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    Py_XDECREF(PyObject_CallMethodNoArgs(lock, k->has.release));
    PyErr_Restore(kind, error, trace);
}

static bool is_queue(const struct known *k, PyObject *object) { return PyObject_TypeCheck(object, (PyTypeObject *)k->has.KeepLastQueue); }
STEP(zc_queue_put) {
    KNOWN(2);
    PyObject *const queue = words[0];
    if (!plain || !is_queue(k, queue)) return in_python(step, words, count, names);
    PyObject *entries = AT(queue, KeepLastQueue__entries), *depth = AT(queue, KeepLastQueue__depth), *done = NULL;
    if (!is_unlocked(k, AT(queue, KeepLastQueue__lock)) || AT(queue, KeepLastQueue__refusing) != Py_False ||
        (depth != Py_None && PyObject_Size(entries) >= value(depth)) ||
        (AT(queue, KeepLastQueue__event) != Py_None && AT(queue, KeepLastQueue__signalled) == Py_False && AT(queue, KeepLastQueue__shut) == Py_False))
        return in_python(step, words, count, names);
    if ((done = PyObject_CallMethodOneArg(entries, k->has.append, words[1])) != NULL)
        Py_SETREF(done, PyObject_CallMethodOneArg(AT(queue, KeepLastQueue__tokens), k->has.put, Py_None));
    return done;
}

/* Take the oldest entry; the caller has taken its token. NULL: there is no entry, or an exception, or the Python function must decide. */
static PyObject *pop(const struct known *k, PyObject *queue) {
    PyObject *const gate = AT(queue, KeepLastQueue__gate), *const lock = AT(queue, KeepLastQueue__lock), *entries = AT(queue, KeepLastQueue__entries), *entry = NULL;
    if (!take(k, lock)) return NULL;
    if (PyObject_Size(entries) > 0 && AT(queue, KeepLastQueue__signalled) == Py_False) {
        PyObject *passes = gate == Py_None ? Py_NewRef(Py_True) : NULL;
        if (gate != Py_None && AT(queue, KeepLastQueue__shut) == Py_False) {
            PyObject *first = PySequence_GetItem(entries, 0);
            passes = first == NULL ? NULL : PyObject_CallOneArg(gate, first);
            Py_XDECREF(first);
        }
        if (passes == Py_True) entry = PyObject_CallMethodNoArgs(entries, k->has.popleft);
        Py_XDECREF(passes);
    }
    let_go(k, lock);
    return entry;
}
/* Call KeepLastQueue.get() again, for the rest of the time. */
static PyObject *rest(PyObject *step, PyObject *queue, double deadline) {
    const double left = deadline - seconds();
    PyObject *timeout = PyErr_Occurred() ? NULL : PyFloat_FromDouble(left > 0 ? left : 0.0), *words[] = {queue, timeout};
    PyObject *found = timeout == NULL ? NULL : in_python(step, words, 2, NULL);
    Py_XDECREF(timeout);
    return found;
}
/* Do KeepLastQueue.get() for a queue without sources. */
static PyObject *wait_for_token(PyObject *step, PyObject *queue, PyObject *timeout, double deadline) {
    const struct known *const k = ((struct step *)step)->known;
    PyObject *const turn = AT(queue, KeepLastQueue__turn), *taken = PyObject_CallMethodOneArg(turn, k->has.acquire, Py_False), *token = NULL, *entry;
    Py_XDECREF(taken);
    if (taken != Py_True) return rest(step, queue, deadline);
    if (AT(queue, KeepLastQueue__epoll) == Py_None && AT(queue, KeepLastQueue_closed) == Py_False)
        token = PyObject_CallMethodObjArgs(AT(queue, KeepLastQueue__tokens), k->has.get, Py_True, timeout, NULL);
    let_go(k, turn);
    if (token == NULL) {
        if (PyErr_Occurred() && PyErr_ExceptionMatches(k->has.Empty)) PyErr_Clear();
        return rest(step, queue, deadline);
    }
    Py_DECREF(token);
    if ((entry = pop(k, queue)) != NULL || PyErr_Occurred()) return entry;
    PyObject *const words[] = {queue, Py_False};
    entry = PyObject_VectorcallMethod(k->has._pop, words, 1, k->has.owing_only);
    if (entry != Py_None || AT(queue, KeepLastQueue_closed) == Py_True) return entry;
    Py_DECREF(entry);
    return rest(step, queue, deadline);
}
/* Return whether the queue has exactly one source, and only that source can have an entry for get() now. */
static bool only_source(const struct known *k, PyObject *queue) {
    PyObject *receivers = AT(queue, KeepLastQueue__receivers);
    return PyObject_Size(AT(queue, KeepLastQueue__entries)) == 0 && AT(queue, KeepLastQueue__signalled) == Py_False &&
           AT(queue, KeepLastQueue__shut) == Py_False && AT(queue, KeepLastQueue_closed) == Py_False && PyTuple_CheckExact(receivers) &&
           PyTuple_GET_SIZE(receivers) == 1;
}
STEP(zc_queue_get) {
    KNOWN(2);
    PyObject *const queue = words[0];
    if (!plain || !is_queue(k, queue) || !PyFloat_CheckExact(words[1]) || !(PyFloat_AS_DOUBLE(words[1]) > 0))
        return in_python(step, words, count, names);
    const double deadline = seconds() + PyFloat_AS_DOUBLE(words[1]);
    if (AT(queue, KeepLastQueue__epoll) == Py_None) return wait_for_token(step, queue, words[1], deadline);
    if (!only_source(k, queue)) return in_python(step, words, count, names);
    PyObject *epoll = Py_NewRef(AT(queue, KeepLastQueue__epoll)), *wait = Py_NewRef(AT(queue, KeepLastQueue__wait)), *const its[] = {epoll, words[1]};
    PyObject *waited = PyObject_Vectorcall(wait, its, 2, NULL), *entry = NULL, *fetching = AT(queue, KeepLastQueue__fetching);
    Py_DECREF(epoll);
    Py_DECREF(wait);
    Py_XDECREF(waited);
    if (waited == NULL) return NULL;
    if (!only_source(k, queue)) return rest(step, queue, deadline);
    if (!take(k, fetching)) return NULL;
    if (only_source(k, queue)) {
        PyObject *receive = Py_NewRef(PyTuple_GET_ITEM(AT(queue, KeepLastQueue__receivers), 0));
        entry = PyObject_CallNoArgs(receive);
        Py_DECREF(receive);
        if (entry != NULL && entry != Py_None && PyObject_Size(AT(queue, KeepLastQueue__entries)) > 0) { /* an entry was queued meanwhile, and comes first */
            Py_SETREF(entry, PyObject_CallMethodOneArg(queue, k->has.put, entry));
            if (entry != NULL) Py_SETREF(entry, Py_NewRef(Py_None));
        }
    } else entry = Py_NewRef(Py_None);
    let_go(k, fetching);
    /* An entry that is queued by now belongs to this call, even after its deadline. */
    if (entry != Py_None || (seconds() >= deadline && only_source(k, queue))) return entry;
    Py_DECREF(entry);
    return rest(step, queue, deadline);
}

/* Set *value to an attribute; false: it isn't a whole number of 0 or more, and an exception is set. */
static bool number(PyObject *object, PyObject *name, unsigned long long *value) {
    PyObject *found = PyObject_GetAttr(object, name);
    *value = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    return !PyErr_Occurred();
}
static bool signed_number(PyObject *object, PyObject *name, int64_t *value) {
    PyObject *found = PyObject_GetAttr(object, name);
    *value = found == NULL ? 0 : PyLong_AsLongLong(found);
    Py_XDECREF(found);
    return !PyErr_Occurred();
}
/* Fill *said from the frame, for this connection; false: the Python function must send the frame. */
static bool describe(const struct known *k, PyObject *connection, PyObject *frame, struct wire_frame *said) {
    PyObject *const data = AT(frame, Frame_data), *const packet = AT(connection, Connection__packet);
    const long long length = value(AT(connection, Connection__length)), dropped = value(AT(connection, Connection__dropped_untold));
    unsigned long long uid = 0, generation = 0, sequence = 0, cost = 0;
    PyObject *header = PyObject_GetAttr(data, k->has.header), *frame_id = header == NULL ? NULL : PyObject_GetAttr(header, k->has.frame_id);
    const bool same = frame_id != NULL && frame_id == AT(connection, Connection__frame_id) && length >= 72 && length <= 72 + WIRE_MAX_FRAME_ID &&
                      PyByteArray_CheckExact(packet) && PyByteArray_GET_SIZE(packet) >= length;
    const bool good = same && number(data, k->has.buffer_uid, &uid) && number(data, k->has.generation, &generation) &&
                      number(data, k->has.sequence, &sequence) && number(data, k->has.capture_cost_ns, &cost) &&
                      signed_number(header, k->has.stamp_ns, &said->stamp_ns) && signed_number(data, k->has.captured_ns, &said->captured_ns);
    said->published_ns = good ? PyLong_AsLongLong(AT(frame, Frame_published_ns)) : 0;
    said->uid = uid, said->generation = generation, said->sequence = sequence, said->capture_cost_ns = cost;
    said->dropped = (uint32_t)dropped, said->fence = false;
    if (good) memcpy(said->frame_id, PyByteArray_AS_STRING(packet) + 72, (size_t)length - 72);
    if (good) said->frame_id[length - 72] = '\0';
    Py_XDECREF(frame_id);
    Py_XDECREF(header);
    if (PyErr_Occurred()) PyErr_Clear();
    else if (good && dropped >= 0 && dropped <= UINT32_MAX) return strlen(said->frame_id) == (size_t)length - 72;
    return false;
}
/* Return whether the frame can be sent now: the connection is alive, no frame is pending, the window has room, and the consumer has the slot. */
static bool may_send(const struct known *k, PyObject *connection, PyObject *key) {
    PyObject *failure = AT(connection, Connection_failure), *send = AT(connection, Connection__send), *newest;
    return is_unlocked(k, AT(connection, Connection__lock)) && AT(connection, Connection__ended) == Py_False && PyUnicode_CheckExact(failure) &&
           PyUnicode_GET_LENGTH(failure) == 0 && PyObject_Size(AT(connection, Connection__pending)) == 0 &&
           PyDict_GET_SIZE(AT(connection, Connection__out)) < value(AT(connection, Connection__window)) && PyCFunction_CheckExact(send) &&
           PyCFunction_GET_SELF(send) == AT(connection, Connection_socket) &&
           (newest = PyDict_GetItemWithError(AT(connection, Connection__introduced), PyTuple_GET_ITEM(key, 0))) != NULL &&
           PyObject_RichCompareBool(newest, PyTuple_GET_ITEM(key, 1), Py_LT) == 1;
}
/* End the connection, because a frame was sent but its lease could not be entered; raise MemoryError. */
static void fail(const struct known *k, PyObject *connection, int sock) {
    PyErr_Clear();
    PyObject *why = PyUnicode_FromString("lease: no memory is left for the lease of a frame that was sent");
    if (why != NULL) put(&AT(connection, Connection_failure), why);
    shutdown(sock, SHUT_RDWR); /* wakes the server's thread, which ends the connection */
    PyErr_NoMemory();
}
/* Send the frame, and make the consumer's lease of it, as Connection.offer() does. Returns 1; 0: not the usual case, nothing was sent; -1: an exception is
 * set, and the connection ends. */
static int send_now(const struct known *k, PyObject *connection, PyObject *frame, PyObject *lease, const struct wire_frame *said) {
    uint8_t packet[72 + WIRE_MAX_FRAME_ID];
    PyObject *const pool = AT(lease, Lease_pool), *const slot = AT(lease, Lease_slot), *const holder = AT(connection, Connection_holder), *account;
    PyObject *delivery = zc_new_frame(k), *uid = PyLong_FromUnsignedLongLong(said->uid), *generation = PyLong_FromUnsignedLongLong(said->generation);
    PyObject *key = uid == NULL || generation == NULL ? NULL : PyTuple_Pack(2, uid, generation), *sent = PyLong_FromLongLong(value(AT(connection, Connection__sent)) + 1);
    struct new_lease made = {NULL, NULL};
    int sock, done = 0;
    /* No Python code runs from may_send() to the last change. So no other thread can run in between, as if the connection's lock was held. Before that, the
     * making of objects may have run Python code, and another thread may have sent a frame. */
    if (delivery != NULL && key != NULL && sent != NULL && zc_make_lease(k, pool, holder, &made) &&
        (sock = PyObject_AsFileDescriptor(AT(connection, Connection_socket))) >= 0 && may_send(k, connection, key) &&
        value(AT(connection, Connection__sent)) + 1 == value(sent) && value(AT(connection, Connection__dropped_untold)) == said->dropped &&
        (account = zc_account_for(k, pool, slot, AT(lease, Lease_generation), holder, &made)) != NULL &&
        transport_send(sock, packet, wire_pack_frame(packet, said), NULL, 0) == 0) {
        const bool entered = zc_enter_lease(k, pool, slot, holder, &made, account) &&
                             PyDict_SetItem(AT(connection, Connection__introduced), uid, generation) == 0 &&
                             PyDict_SetItem(AT(connection, Connection__out), key, delivery) == 0;
        done = entered ? 1 : -1;
        if (!entered) fail(k, connection, sock);
        put(&AT(delivery, Frame__lease), Py_NewRef(made.lease));
        put(&AT(delivery, Frame_data), Py_NewRef(AT(frame, Frame_data)));
        put(&AT(delivery, Frame_published_ns), Py_NewRef(AT(frame, Frame_published_ns)));
        put(&AT(connection, Connection__dropped_untold), PyLong_FromLong(0));
        put(&AT(connection, Connection__sent), Py_NewRef(sent));
    }
    Py_XDECREF(delivery);
    Py_XDECREF(uid);
    Py_XDECREF(generation);
    Py_XDECREF(key);
    Py_XDECREF(sent);
    Py_XDECREF(made.lease);
    Py_XDECREF(made.holder);
    if (done == 0) PyErr_Clear(); /* the Python function tries again */
    return done;
}
STEP(zc_connection_offer) {
    KNOWN(2);
    PyObject *const connection = words[0], *const frame = words[1];
    struct wire_frame said;
    if (!plain || !is(connection, k->has.Connection) || !is(frame, k->has.Frame) || !is(AT(frame, Frame__lease), k->has.Lease) ||
        PyObject_Size(AT(connection, Connection__pending)) != 0)
        return in_python(step, words, count, names);
    PyObject *fence = PyObject_GetAttr(AT(frame, Frame_data), k->has.acquire_fence), *lease = Py_NewRef(AT(frame, Frame__lease));
    const int sent = fence == Py_None && describe(k, connection, frame, &said) ? send_now(k, connection, frame, lease, &said) : 0;
    Py_XDECREF(fence);
    Py_DECREF(lease);
    if (sent < 0) return NULL;
    return sent > 0 ? Py_NewRef(Py_None) : in_python(step, words, count, names);
}

/* Add 1 to an attribute. */
static bool count_one(PyObject *object, PyObject *name) {
    PyObject *before = PyObject_GetAttr(object, name), *after = before == NULL ? NULL : PyLong_FromLongLong(value(before) + 1);
    const bool done = after != NULL && PyObject_SetAttr(object, name, after) == 0;
    Py_XDECREF(before);
    Py_XDECREF(after);
    return done;
}
/* Put the subscription's frame into its queue and wake its reader; count None as refused. false: an exception is set. */
static bool enqueue(const struct known *k, PyObject *subscription, PyObject *delivery) {
    if (delivery == Py_None) return count_one(subscription, k->has.refused);
    PyObject *its = count_one(subscription, k->has.delivered) ? PyObject_GetAttr(subscription, k->has.queue) : NULL, *notify = NULL;
    if (its != NULL) Py_SETREF(its, PyObject_CallMethodOneArg(its, k->has.put, delivery));
    if (its != NULL && (notify = PyObject_GetAttr(subscription, k->has.notify)) != NULL && notify != Py_None) Py_SETREF(notify, PyObject_CallNoArgs(notify));
    const bool done = its != NULL && notify != NULL;
    Py_XDECREF(its);
    Py_XDECREF(notify);
    return done;
}
/* Do BusPublisher._give() for a frame; false: an exception is set. */
static bool give(const struct known *k, PyObject *publisher, PyObject *frame, PyObject *subscription, PyObject *holder) {
    PyObject *headers = PyObject_GetAttr(subscription, k->has.headers), *by_message = PyObject_GetAttr(subscription, k->has.by_message);
    PyObject *deliver = PyObject_GetAttr(publisher, k->has.deliver), *const its[] = {frame, holder}, *delivery = NULL;
    bool done = headers != NULL && by_message != NULL && deliver != NULL;
    if (done && headers != Py_None) {
        PyObject *header = PyObject_GetAttr(AT(frame, Frame_data), k->has.header), *added = header == NULL ? NULL : PyObject_CallMethodOneArg(headers, k->has.append, header);
        done = added != NULL;
        Py_XDECREF(header);
        Py_XDECREF(added);
    }
    if (done && by_message == Py_False) {
        delivery = PyObject_Vectorcall(deliver, its, 2, NULL);
        if (delivery == Py_None) Py_SETREF(delivery, PyObject_CallMethodObjArgs(publisher, k->has._in_place_of_oldest, frame, subscription, holder, NULL));
        done = delivery != NULL && enqueue(k, subscription, delivery);
    }
    Py_XDECREF(headers);
    Py_XDECREF(by_message);
    Py_XDECREF(deliver);
    Py_XDECREF(delivery);
    return done;
}
/* Return whether an attribute is this object; false also if it can't be read. */
static bool has(PyObject *object, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_GetAttr(object, name);
    if (found == NULL) PyErr_Clear();
    Py_XDECREF(found);
    return found == wanted;
}
STEP(zc_bus_publish) {
    KNOWN(2);
    PyObject *const publisher = words[0], *const frame = words[1], *qos, *served;
    if (!plain || !is(publisher, k->has.BusPublisher) || !is(frame, k->has.Frame) || !is(AT(frame, Frame__lease), k->has.Lease) ||
        has(publisher, k->has.pool_of, Py_None) || !has(publisher, k->has._pool, AT(AT(frame, Frame__lease), Lease_pool)))
        return in_python(step, words, count, names);
    if ((qos = PyObject_GetAttr(publisher, k->has.qos)) == NULL) return NULL;
    const bool keeps_none = has(qos, k->has.transient_local, Py_False);
    Py_DECREF(qos);
    if (!keeps_none) return in_python(step, words, count, names);
    if ((served = PyObject_GetAttr(publisher, k->has._served)) == NULL) return NULL;
    bool done = true;
    for (Py_ssize_t i = 0; done && i < PyTuple_GET_SIZE(served); i++) {
        PyObject *const pair = PyTuple_GET_ITEM(served, i);
        done = give(k, publisher, frame, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    Py_DECREF(served);
    return done ? Py_NewRef(Py_None) : NULL;
}
/* Call a method with the frame; false: an exception is set. */
static bool pass(PyObject *to, PyObject *method, PyObject *frame) {
    PyObject *passed = PyObject_CallMethodOneArg(to, method, frame);
    Py_XDECREF(passed);
    return passed != NULL;
}
/* Do SharedMemoryServer.publish() for a server without a history; false: an exception is set. */
static bool serve(const struct known *k, PyObject *server, PyObject *frame) {
    if (!is(server, k->has.SharedMemoryServer) || !has(server, k->has._history, Py_None)) return pass(server, k->has.publish, frame);
    PyObject *connections = PyObject_GetAttr(server, k->has._connections);
    bool done = connections != NULL;
    for (Py_ssize_t i = 0; done && i < PyTuple_GET_SIZE(connections); i++) done = pass(PyTuple_GET_ITEM(connections, i), k->has.offer, frame);
    Py_XDECREF(connections);
    return done;
}
STEP(zc_publisher_publish) {
    KNOWN(2);
    PyObject *const publisher = words[0], *const frame = words[1];
    if (!plain || !is(publisher, k->has.AdaptedPublisher) || !is(frame, k->has.Frame) || AT(publisher, AdaptedPublisher__closed) != Py_False ||
        !has(AT(publisher, AdaptedPublisher__adapter), k->has.custom_type, k->has.Frame))
        return in_python(step, words, count, names);
    PyObject *number = PyLong_FromLongLong(value(AT(publisher, AdaptedPublisher__published)) + 1), *at = PyLong_FromLongLong(transport_now_ns());
    if (number == NULL || at == NULL) {
        Py_XDECREF(number);
        Py_XDECREF(at);
        return NULL;
    }
    put(&AT(publisher, AdaptedPublisher__published), number);
    put(&AT(frame, Frame_published_ns), at);
    PyObject *server = Py_NewRef(AT(publisher, AdaptedPublisher__shared_memory)), *bus = Py_NewRef(AT(publisher, AdaptedPublisher__bus_publisher));
    PyObject *messages = Py_NewRef(AT(publisher, AdaptedPublisher_messages));
    const bool done = (server == Py_None || serve(k, server, frame)) && pass(bus, k->has.publish, frame) && pass(messages, k->has.write, frame);
    Py_DECREF(server);
    Py_DECREF(bus);
    Py_DECREF(messages);
    return done ? Py_NewRef(Py_None) : NULL;
}

STEP(zc_client_wait) {
    KNOWN(3);
    PyObject *slots = plain && is(words[0], k->has.SharedMemoryClient) ? Py_NewRef(AT(words[0], SharedMemoryClient__slots)) : NULL;
    PyObject *receiver = slots == NULL || slots == Py_None ? NULL : PyObject_GetAttr(slots, k->has.receiver), *waited = NULL;
    const bool ours = is(receiver, k->has.Receiver);
    if (ours) waited = zc_wait(receiver, words[1], words[2]);
    Py_XDECREF(receiver);
    Py_XDECREF(slots);
    return ours ? waited : in_python(step, words, count, names);
}
/* Do SharedMemoryClient.receive() for a plain FRAME; None: no packet is there; NULL: not the usual case, and a packet, if any, is kept. */
static PyObject *receive(const struct known *k, PyObject *client) {
    PyObject *const slots = AT(client, SharedMemoryClient__slots);
    unsigned dropped = 0;
    if (slots == Py_None || !is_unlocked(k, AT(client, SharedMemoryClient__lock))) return NULL;
    PyObject *attention = PyObject_GetAttr(slots, k->has.attention), *receiver = PyObject_GetAttr(slots, k->has.receiver), *frame = NULL;
    PyObject *received = PyLong_FromLongLong(value(AT(client, SharedMemoryClient__received)) + 1), *drops = NULL;
    if (attention == Py_False && received != NULL && is(receiver, k->has.Receiver)) frame = zc_receive(receiver, slots, &dropped);
    if (frame == NULL) PyErr_Clear(); /* the Python function tries again; if it fails, too, it ends the connection */
    if (frame != NULL && frame != Py_None) put(&AT(client, SharedMemoryClient__received), Py_NewRef(received));
    if (dropped > 0 && (drops = PyLong_FromLongLong(value(AT(client, SharedMemoryClient_dropped)) + dropped)) != NULL) put(&AT(client, SharedMemoryClient_dropped), drops);
    if (PyErr_Occurred()) PyErr_Clear(); /* without memory these drops aren't counted */
    Py_XDECREF(attention);
    Py_XDECREF(receiver);
    Py_XDECREF(received);
    return frame;
}
STEP(zc_link_receive) {
    KNOWN(1);
    PyObject *const link = words[0];
    if (!plain || !is(link, k->has._Link) || AT(link, _Link__seen) != Py_None || !is(AT(link, _Link_client), k->has.SharedMemoryClient))
        return in_python(step, words, count, names);
    PyObject *frame = receive(k, AT(link, _Link_client));
    if (frame == NULL || frame == Py_None) return frame != NULL ? frame : in_python(step, words, count, names);
    PyObject *header = PyObject_GetAttr(AT(frame, Frame_data), k->has.header), *wanted = header == NULL ? NULL : PyObject_CallOneArg(AT(link, _Link__accept), header);
    const int accepted = wanted == NULL ? -1 : PyObject_IsTrue(wanted);
    Py_XDECREF(header);
    Py_XDECREF(wanted);
    if (accepted > 0) return frame;
    if (accepted == 0) Py_XDECREF(PyObject_CallMethodNoArgs(frame, k->has.release));
    Py_DECREF(frame);
    return in_python(step, words, count, names);
}
