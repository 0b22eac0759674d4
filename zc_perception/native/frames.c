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
#include "steps.h"

#include <stdlib.h>
#include <structmember.h>
#include <time.h>

static PyObject *now(const struct known *k) {
    PyObject *clock = PyDict_GetItemWithError(k->has.pools, k->has.time);
    struct timespec t;
    if (clock != k->has.clock) return clock == NULL ? NULL : PyObject_CallMethodNoArgs(clock, k->has.monotonic);
    clock_gettime(CLOCK_MONOTONIC, &t);
    return PyFloat_FromDouble((double)(t.tv_sec * 1000000000LL + t.tv_nsec) / 1e9);
}
static PyObject *copy(const struct known *k, PyObject *model, enum zc_field first, enum zc_field last) {
    PyObject *made = Py_TYPE(model)->tp_alloc(Py_TYPE(model), 0);
    for (int field = first; made != NULL && field <= (int)last; field++) AT(made, field) = Py_XNewRef(AT(model, field));
    return made;
}
static bool is_pool(const struct known *k, PyObject *object) { return PyObject_TypeCheck(object, (PyTypeObject *)k->has.BufferPool); }
static bool is_its_slot(const struct known *k, PyObject *pool, PyObject *slot) {
    return is_pool(k, pool) && is(slot, k->has.Slot) && value(AT(slot, Slot_buffer_uid)) >> 32 == value(AT(pool, BufferPool__uid));
}

bool zc_make_lease(const struct known *k, PyObject *pool, PyObject *name, struct new_lease *made) {
    PyObject *since;
    *made = (struct new_lease){NULL, NULL};
    if (!PyUnicode_CheckExact(name) || (since = now(k)) == NULL) return false;
    const int known = PyDict_Contains(AT(pool, BufferPool__holders), name);
    if ((made->lease = copy(k, k->has.a_lease, Lease_pool, Lease_ended)) != NULL) put(&AT(made->lease, Lease_since), since);
    else Py_DECREF(since);
    if (known == 0 && (made->holder = copy(k, k->has.a_holder, Holder_name, Holder_on_room)) != NULL) put(&AT(made->holder, Holder_name), Py_NewRef(name));
    return made->lease != NULL && known >= 0 && !PyErr_Occurred();
}
PyObject *zc_account_for(const struct known *k, PyObject *pool, PyObject *slot, PyObject *generation, PyObject *name, const struct new_lease *made) {
    PyObject *state = AT(slot, Slot_state);
    if (!is_ours(k, pool) || !are_equal(AT(slot, Slot_generation), generation) || (state != k->has.is_filling && state != k->has.is_leased)) return NULL;
    PyObject *account = PyDict_GetItemWithError(AT(pool, BufferPool__holders), name);
    if (account == NULL) return made->holder;
    return value(AT(account, Holder_frames)) < value(AT(account, Holder_limit)) ? account : NULL;
}
bool zc_enter_lease(const struct known *k, PyObject *pool, PyObject *slot, PyObject *name, const struct new_lease *made, PyObject *account) {
    PyObject *numbers = AT(pool, BufferPool__lease_numbers), *lease = made->lease;
    PyObject *frames = PyLong_FromLongLong(value(AT(account, Holder_frames)) + 1), *number = Py_TYPE(numbers)->tp_iternext(numbers);
    const bool known = frames != NULL && number != NULL && (account != made->holder || PyDict_SetItem(AT(pool, BufferPool__holders), name, account) == 0);
    if (!known || PyDict_SetItem(AT(slot, Slot_leases), number, lease) != 0) {
        if (known && account == made->holder) PyDict_DelItem(AT(pool, BufferPool__holders), name);
        Py_XDECREF(frames);
        Py_XDECREF(number);
        return false;
    }
    put(&AT(account, Holder_frames), frames);
    put(&AT(slot, Slot_state), Py_NewRef(k->has.is_leased));
    put(&AT(lease, Lease_number), number);
    put(&AT(lease, Lease_pool), Py_NewRef(pool));
    put(&AT(lease, Lease_slot), Py_NewRef(slot));
    put(&AT(lease, Lease_generation), Py_NewRef(AT(slot, Slot_generation)));
    put(&AT(lease, Lease_account), Py_NewRef(account));
    return true;
}
/* Do BufferPool.lease() for a slot that belongs to the pool; NULL: not the usual case, or an exception. */
static PyObject *new_lease(const struct known *k, PyObject *pool, PyObject *slot, PyObject *generation, PyObject *name) {
    struct new_lease made;
    PyObject *account = zc_make_lease(k, pool, name, &made) ? zc_account_for(k, pool, slot, generation, name, &made) : NULL;
    if (account == NULL || !zc_enter_lease(k, pool, slot, name, &made, account)) Py_CLEAR(made.lease);
    Py_XDECREF(made.holder);
    return made.lease;
}
PyObject *zc_new_frame(const struct known *k) {
    PyObject *process = PyDict_GetItemWithError(k->has.frames, k->has._process);
    PyObject *frame = process == NULL ? NULL : copy(k, k->has.a_frame, Frame_data, Frame__process);
    if (frame == NULL) return NULL;
    put(&AT(frame, Frame__live), PyList_New(0));
    put(&AT(frame, Frame__mappings), PyList_New(0));
    put(&AT(frame, Frame__process), Py_NewRef(process));
    if (AT(frame, Frame__live) == NULL || AT(frame, Frame__mappings) == NULL) Py_CLEAR(frame);
    return frame;
}
/* Give the frame a new lease and return the frame; NULL: no lease could be made, and the frame is deleted. */
static PyObject *lease_to(const struct known *k, PyObject *frame, PyObject *pool, PyObject *slot, PyObject *generation, PyObject *name) {
    PyObject *lease = frame == NULL ? NULL : new_lease(k, pool, slot, generation, name);
    if (lease != NULL) put(&AT(frame, Frame__lease), lease);
    else Py_CLEAR(frame);
    return frame;
}

/* Do BufferPool.release() without a fence; false: not the usual case, or an exception. *freed: the slot for which on_free must be called; the caller
 * owns this reference. */
static bool drop(const struct known *k, PyObject *pool, PyObject *lease, PyObject **freed) {
    PyObject *slot = AT(lease, Lease_slot), *account = AT(lease, Lease_account), *leases = AT(slot, Slot_leases), *name = AT(account, Holder_name);
    if (AT(lease, Lease_pool) != pool || PyDict_GetItemWithError(leases, AT(lease, Lease_number)) != lease ||
        value(AT(lease, Lease_uses)) != 1 || AT(account, Holder_wants) != Py_False || AT(account, Holder_lossless) != Py_False ||
        value(AT(slot, Slot_pins)) != 0 || PyObject_Size(AT(pool, BufferPool__news)) != 0 || !is_ours(k, pool))
        return false;
    const bool last = PyDict_GET_SIZE(leases) == 1;
    if (last && (!is_empty(AT(slot, Slot_fences)) || AT(slot, Slot_condemned) != Py_False || AT(slot, Slot_state) != k->has.is_leased ||
                 AT(pool, BufferPool__closed) != Py_False || AT(pool, BufferPool__waker) != Py_None))
        return false;
    const long long held = value(AT(account, Holder_frames)) - 1;
    const unsigned long long bit = 1ULL << (PyLong_AsUnsignedLong(AT(slot, Slot_index)) & 63);
    PyObject *frames = PyLong_FromLongLong(held), *bits = PyLong_FromUnsignedLongLong(PyLong_AsUnsignedLongLong(AT(pool, BufferPool__free)) | (last ? bit : 0));
    if (frames == NULL || bits == NULL || PyErr_Occurred()) {
        Py_XDECREF(frames);
        Py_XDECREF(bits);
        return false;
    }
    put(&AT(account, Holder_frames), frames);
    put(&AT(pool, BufferPool__free), bits);
    put(&AT(lease, Lease_ended), Py_NewRef(k->has.released));
    if (held == 0 && AT(account, Holder_number) == Py_None && PyDict_Contains(AT(pool, BufferPool__holders), name) == 1)
        PyDict_DelItem(AT(pool, BufferPool__holders), name);
    if (last) put(&AT(slot, Slot_state), Py_NewRef(k->has.is_free));
    if (last && AT(pool, BufferPool__on_free) != Py_None) *freed = Py_NewRef(slot);
    /* The caller also has a reference to the lease, so this call doesn't free the lease object. */
    return PyDict_DelItem(leases, AT(lease, Lease_number)) == 0;
}
/* Call the pool's on_free if a slot was freed; return the result of release(). This takes over the references to pool and slot. */
static PyObject *tell(const struct known *k, PyObject *pool, PyObject *freed) {
    PyObject *said = freed == NULL ? Py_NewRef(Py_None) : PyObject_CallMethodObjArgs(pool, k->has._call, AT(pool, BufferPool__on_free), freed, k->has.on_free, NULL);
    Py_XDECREF(freed);
    Py_DECREF(pool);
    return said;
}
/* Do BufferPool.hand_out() for a lease whose holder is within its limit of frames; NULL: another case, or an exception. */
static PyObject *hand_over(const struct known *k, PyObject *lease) {
    PyObject *account = AT(lease, Lease_account), *number = AT(account, Holder_number);
    if (number != Py_None && value(AT(account, Holder_frames)) > value(number)) return NULL;
    if (PyErr_Occurred()) return NULL;
    put(&AT(lease, Lease_handed), Py_NewRef(Py_True));
    return Py_NewRef(Py_True);
}

static STEP(pool_acquire) {
    KNOWN(1);
    PyObject *const pool = words[0];
    const bool at = PyVectorcall_NARGS(count) == 2 && names == NULL && PyLong_CheckExact(words[1]);
    if ((!plain && !at) || !is_pool(k, pool)) return in_python(step, words, count, names);
    PyObject *since = now(k), *slots = AT(pool, BufferPool__slots), *generation = NULL, *bits = NULL, *found = NULL;
    const unsigned long long free = PyLong_AsUnsignedLongLong(AT(pool, BufferPool__free));
    const long long index = at ? value(words[1]) : 0;
    unsigned long long bit = free & (0 - free);
    if (at) bit = index < 0 || index > 63 ? 0 : free & 1ULL << index;
    if (since != NULL && bit != 0 && !PyErr_Occurred() && PyDict_GET_SIZE(AT(pool, BufferPool__waiting)) == 0 && PySet_GET_SIZE(AT(pool, BufferPool__missing)) == 0 &&
        says(AT(pool, BufferPool__abandoned_leases), k->has.empty, Py_True) && is_ours(k, pool) && __builtin_ctzll(bit) < PyList_GET_SIZE(slots)) {
        PyObject *const slot = PyList_GET_ITEM(slots, __builtin_ctzll(bit));
        generation = PyLong_FromLongLong(value(AT(slot, Slot_generation)) + 1), bits = PyLong_FromUnsignedLongLong(free ^ bit);
        if (generation != NULL && bits != NULL && !PyErr_Occurred()) {
            put(&AT(pool, BufferPool__free), Py_NewRef(bits));
            put(&AT(slot, Slot_state), Py_NewRef(k->has.is_filling));
            put(&AT(slot, Slot_generation), Py_NewRef(generation));
            put(&AT(slot, Slot_since), Py_NewRef(since));
            found = Py_NewRef(slot);
        }
    }
    Py_XDECREF(since);
    Py_XDECREF(generation);
    Py_XDECREF(bits);
    return found != NULL ? found : in_python(step, words, count, names);
}
static STEP(pool_lease) {
    KNOWN(4);
    PyObject *found = plain && is_its_slot(k, words[0], words[1]) ? new_lease(k, words[0], words[1], words[2], words[3]) : NULL;
    return found != NULL ? found : in_python(step, words, count, names);
}
static STEP(pool_release) {
    KNOWN(2);
    PyObject *freed = NULL;
    if (plain && is_pool(k, words[0]) && is(words[1], k->has.Lease) && drop(k, words[0], words[1], &freed)) return tell(k, Py_NewRef(words[0]), freed);
    return in_python(step, words, count, names);
}
static STEP(pool_hand_out) {
    KNOWN(2);
    PyObject *found = plain && is(words[1], k->has.Lease) ? hand_over(k, words[1]) : NULL;
    return found != NULL ? found : in_python(step, words, count, names);
}

static STEP(frame_deliver) {
    KNOWN(2);
    PyObject *const frame = words[0], *found = NULL;
    if (plain && is(frame, k->has.Frame) && is(AT(frame, Frame__lease), k->has.Lease)) {
        PyObject *lease = Py_NewRef(AT(frame, Frame__lease)); /* keep the lease, as another thread may release the frame meanwhile */
        found = lease_to(k, zc_new_frame(k), AT(lease, Lease_pool), AT(lease, Lease_slot), AT(lease, Lease_generation), words[1]);
        Py_DECREF(lease);
    }
    if (found == NULL) return in_python(step, words, count, names);
    put(&AT(found, Frame_data), Py_NewRef(AT(frame, Frame_data)));
    put(&AT(found, Frame_published_ns), Py_NewRef(AT(frame, Frame_published_ns)));
    return found;
}
static STEP(frame_release) {
    KNOWN(1);
    PyObject *const frame = words[0], *freed = NULL;
    if (!plain || !is(frame, k->has.Frame) || !is(AT(frame, Frame__lease), k->has.Lease) || !is_empty(AT(frame, Frame__mappings)) ||
        !is_empty(AT(frame, Frame__live)))
        return in_python(step, words, count, names);
    PyObject *lease = Py_NewRef(AT(frame, Frame__lease)), *pool = Py_NewRef(AT(lease, Lease_pool));
    const bool dropped = drop(k, pool, lease, &freed);
    if (dropped) put(&AT(frame, Frame__lease), Py_NewRef(Py_None));
    Py_DECREF(lease);
    if (dropped) return tell(k, pool, freed);
    Py_DECREF(pool);
    return in_python(step, words, count, names);
}
static STEP(frame_hand_out) {
    KNOWN(1);
    PyObject *found = plain && is(words[0], k->has.Frame) && is(AT(words[0], Frame__lease), k->has.Lease) ? hand_over(k, AT(words[0], Frame__lease)) : NULL;
    return found != NULL ? found : in_python(step, words, count, names);
}
static STEP(frame_end) {
    KNOWN(1);
    if (plain && is(words[0], k->has.Frame) && AT(words[0], Frame__lease) == Py_None) return Py_NewRef(Py_None);
    return in_python(step, words, count, names);
}

/* Make FrameData from the slot and the keyword arguments; NULL: one is unknown or missing, or an exception. */
static PyObject *new_data(const struct known *k, PyObject *slot, PyObject *const *words, PyObject *names) {
    const struct objects *n = &k->has;
    PyTypeObject *type = (PyTypeObject *)n->FrameData;
    PyObject *const own[][2] = {{n->layout, AT(slot, Slot_layout)}, {n->buffers, AT(slot, Slot_buffers)}, {n->buffer_uid, AT(slot, Slot_buffer_uid)},
                                {n->generation, AT(slot, Slot_generation)}};
    PyObject *const needed[] = {n->header, n->colorimetry, n->sequence, n->captured_ns}, *const more[] = {n->capture_cost_ns, n->acquire_fence};
    PyObject *data = type->tp_new(type, n->nothing, NULL);
    int missing = 4, failed = data == NULL;
    for (int i = 0; !failed && i < 4; i++) failed = PyObject_GenericSetAttr(data, own[i][0], own[i][1]);
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        const int before = missing;
        for (int j = 0; j < 4; j++) missing -= name == needed[j];
        failed = (missing == before && name != more[0] && name != more[1]) || PyObject_GenericSetAttr(data, name, words[i]);
    }
    if (failed || missing > 0) Py_CLEAR(data);
    return data;
}
static STEP(frame_publish_slot) {
    const struct known *const k = ((struct step *)step)->known;
    PyObject *data = NULL, *found = NULL;
    if (PyVectorcall_NARGS(count) == 3 && names != NULL && words[0] == k->has.Frame && is_its_slot(k, words[1], words[2]) &&
        (data = new_data(k, words[2], words + 3, names)) != NULL) {
        PyObject *generation = Py_NewRef(AT(words[2], Slot_generation)), *sequence = PyObject_GetAttr(data, k->has.sequence);
        found = sequence == NULL ? NULL : lease_to(k, zc_new_frame(k), words[1], words[2], generation, AT(words[1], BufferPool_name));
        if (found != NULL) {
            put(&AT(words[2], Slot_sequence), Py_NewRef(sequence));
            put(&AT(found, Frame_data), Py_NewRef(data));
        }
        Py_XDECREF(sequence);
        Py_DECREF(generation);
    }
    Py_XDECREF(data);
    return found != NULL ? found : in_python(step, words, count, names);
}

/* Read an attribute of a step from its Python function, so that a step looks like that function. */
static PyObject *look(PyObject *step, PyObject *name) { return PyObject_GetAttr(((struct step *)step)->plain, name); }
static PyObject *bind(PyObject *step, PyObject *to, PyObject *type) {
    (void)type;
    return to == NULL || to == Py_None ? Py_NewRef(step) : PyMethod_New(step, to);
}
static void end(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (((struct step *)object)->weak != NULL) PyObject_ClearWeakRefs(object);
    Py_XDECREF(((struct step *)object)->plain);
    Py_XDECREF(((struct step *)object)->keeper);
    type->tp_free(object);
    Py_DECREF(type);
}
static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct step, call), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct step, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots_of_type[] = {
    {Py_tp_call, (void *)PyVectorcall_Call}, {Py_tp_dealloc, (void *)end}, {Py_tp_descr_get, (void *)bind},
    {Py_tp_getattro, (void *)look},          {Py_tp_members, members},     {0, NULL},
};
static PyType_Spec spec = {"zc_perception.native.compiled.Step", sizeof(struct step), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots_of_type};

static const struct {
    const char *owner, *name;
} FIELDS[] = {
#define ZC_PLACE(owner, name) {#owner, #name},
    ZC_FIELDS(ZC_PLACE)
};
static const struct {
    const char *owner, *name;
    vectorcallfunc call;
} STEPS[] = {
    {"BufferPool", "acquire", pool_acquire},
    {"BufferPool", "lease", pool_lease},
    {"BufferPool", "release", pool_release},
    {"BufferPool", "hand_out", pool_hand_out},
    {"Frame", "deliver", frame_deliver},
    {"Frame", "release", frame_release},
    {"Frame", "hand_out", frame_hand_out},
    {"Frame", "publish_slot", frame_publish_slot},
    {"Frame", "__del__", frame_end},
    {"Frame", "map", zc_frame_map},
    {"FrameMapping", "__enter__", zc_mapping_enter},
    {"FrameMapping", "__exit__", zc_mapping_exit},
    {"FrameMapping", "__getitem__", zc_mapping_item},
    {"KeepLastQueue", "put", zc_queue_put},
    {"KeepLastQueue", "get", zc_queue_get},
    {"Connection", "offer", zc_connection_offer},
    {"SharedMemoryClient", "wait", zc_client_wait},
    {"BusPublisher", "publish", zc_bus_publish},
    {"AdaptedPublisher", "publish", zc_publisher_publish},
    {"_Link", "receive", zc_link_receive},
};
static void forget(PyObject *keeper) {
    struct known *known = PyCapsule_GetPointer(keeper, NULL);
    PyObject **const has = (PyObject **)&known->has;
    for (size_t i = 0; i < sizeof known->has / sizeof *has; i++) Py_XDECREF(has[i]);
    PyMem_Free(known);
}
/* Return the object of that name in frame.py or pool.py, or NULL. */
static PyObject *named(const struct objects *has, const char *name) {
    PyObject *found = PyDict_GetItemString(has->frames, name);
    return Py_XNewRef(found != NULL ? found : PyDict_GetItemString(has->pools, name));
}
/* Return the offset of a field of __slots__; -1: an exception is set. */
static Py_ssize_t place_of(PyObject *class, const char *owner, const char *name) {
    PyObject *member = PyObject_GetAttrString(class, name);
    Py_ssize_t place = -1;
    if (member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type)) place = ((PyMemberDescrObject *)member)->d_member->offset;
    else if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s.%s has to be one of __slots__", owner, name);
    Py_XDECREF(member);
    return place;
}
/* Replace a function of the class by a step; false: an exception is set. */
static bool replace(PyTypeObject *type, PyObject *keeper, PyObject *class, size_t number) {
    PyObject *plain = PyObject_GetAttrString(class, STEPS[number].name);
    const bool of_class = plain != NULL && PyMethod_Check(plain);
    struct step *step = plain == NULL ? NULL : (struct step *)type->tp_alloc(type, 0);
    PyObject *put_there = (PyObject *)step;
    if (step != NULL) {
        step->call = STEPS[number].call, step->plain = Py_NewRef(of_class ? PyMethod_GET_FUNCTION(plain) : plain);
        step->keeper = Py_NewRef(keeper), step->known = PyCapsule_GetPointer(keeper, NULL);
        if (of_class) Py_SETREF(put_there, PyClassMethod_New(put_there));
    }
    const bool done = put_there != NULL && PyObject_SetAttrString(class, STEPS[number].name, put_there) == 0;
    Py_XDECREF(put_there);
    Py_XDECREF(plain);
    return done;
}
/* Look up the fields of a class, and replace its functions by steps; false: an exception is set. */
static bool take_class(PyTypeObject *type, PyObject *keeper, const char *name, PyObject *class) {
    struct known *known = PyCapsule_GetPointer(keeper, NULL);
    for (int i = 0; i < ZC_FIELD_COUNT; i++)
        if (strcmp(FIELDS[i].owner, name) == 0 && (known->at[i] = place_of(class, name, FIELDS[i].name)) <= 0) return false;
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++)
        if (strcmp(STEPS[i].owner, name) == 0 && !replace(type, keeper, class, i)) return false;
    return true;
}
/* Return the capsule that owns the module's `known`; the first call makes it. */
static PyObject *keeper_of(PyObject *module) {
    PyObject *keeper = PyObject_GetAttrString(module, "known");
    if (keeper != NULL) return keeper;
    PyErr_Clear();
    struct known *known = PyMem_Calloc(1, sizeof *known);
    if (known == NULL) return PyErr_NoMemory();
    if ((keeper = PyCapsule_New(known, NULL, forget)) == NULL) {
        PyMem_Free(known);
        return NULL;
    }
    struct objects *has = &known->has;
    PyObject *queues = PyImport_ImportModule("queue");
    bool good = queues != NULL && (has->Empty = PyObject_GetAttrString(queues, "Empty")) != NULL && (has->nothing = PyTuple_New(0)) != NULL && (has->Receiver = PyObject_GetAttrString(module, "Receiver")) != NULL;
#define ZC_INTERN(word) good = good && (has->word = PyUnicode_InternFromString(#word)) != NULL;
    ZC_WORDS(ZC_INTERN)
    good = good && (has->owing_only = PyTuple_Pack(1, has->owing)) != NULL && PyObject_SetAttrString(module, "known", keeper) == 0;
    Py_XDECREF(queues);
    if (!good) Py_CLEAR(keeper);
    return keeper;
}
static bool learn(struct objects *has) {
    PyObject *states = named(has, "SlotState"), *mapping = PyImport_ImportModule("zc_perception.mapping"), *numpy = named(has, "np");
    has->FrameMapping = named(has, "FrameMapping"), has->read = named(has, "_READ");
    has->Frame = named(has, "Frame"), has->FrameData = named(has, "FrameData"), has->BufferPool = named(has, "BufferPool");
    has->Slot = named(has, "Slot"), has->Lease = named(has, "Lease"), has->Holder = named(has, "Holder"), has->clock = named(has, "time");
    const bool good = states != NULL && mapping != NULL && numpy != NULL && has->FrameMapping != NULL && has->read != NULL && has->Holder != NULL && has->Frame != NULL && has->FrameData != NULL && has->BufferPool != NULL && has->Slot != NULL &&
                      has->Lease != NULL && has->clock != NULL && (has->is_free = PyObject_GetAttrString(states, "FREE")) != NULL &&
                      (has->is_filling = PyObject_GetAttrString(states, "FILLING")) != NULL &&
                      (has->mappings = Py_XNewRef(PyModule_GetDict(mapping))) != NULL && (has->ndarray = PyObject_GetAttrString(numpy, "ndarray")) != NULL &&
                      (has->frombuffer = PyObject_GetAttrString(numpy, "frombuffer")) != NULL &&
                      (has->uint8 = PyObject_CallMethod(numpy, "dtype", "s", "uint8")) != NULL &&
                      (has->is_leased = PyObject_GetAttrString(states, "LEASED")) != NULL && (has->a_holder = PyObject_CallFunction(has->Holder, "s", "")) != NULL &&
                      (has->a_frame = PyObject_CallFunction(has->Frame, "OO", Py_None, Py_None)) != NULL &&
                      (has->a_lease = PyObject_CallFunction(has->Lease, "OOiiOi", Py_None, Py_None, 0, 0, Py_None, 0)) != NULL;
    Py_XDECREF(states);
    Py_XDECREF(mapping);
    Py_XDECREF(numpy);
    return good;
}

PyDoc_STRVAR(take_over_doc, "take_over(globals of frame.py, globals of memory/pool.py): put the compiled steps in place of their functions.");
static PyObject *take_over(PyObject *module, PyObject *words) {
    PyObject *frames, *pools;
    if (!PyArg_ParseTuple(words, "O!O!:take_over", &PyDict_Type, &frames, &PyDict_Type, &pools)) return NULL;
    PyObject *keeper = keeper_of(module), *type = PyObject_GetAttrString(module, "Step");
    bool done = keeper != NULL && type != NULL;
    if (done) {
        struct objects *has = &((struct known *)PyCapsule_GetPointer(keeper, NULL))->has;
        Py_XSETREF(has->frames, Py_NewRef(frames));
        Py_XSETREF(has->pools, Py_NewRef(pools));
        done = learn(has);
        const struct { const char *name; PyObject *class; } classes[] = {
            {"Frame", has->Frame}, {"BufferPool", has->BufferPool}, {"Slot", has->Slot}, {"Lease", has->Lease}, {"Holder", has->Holder}, {"FrameMapping", has->FrameMapping}};
        for (size_t i = 0; done && i < sizeof classes / sizeof *classes; i++) done = take_class((PyTypeObject *)type, keeper, classes[i].name, classes[i].class);
    }
    Py_XDECREF(type);
    Py_XDECREF(keeper);
    if (done) Py_RETURN_NONE;
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "frame.py and memory/pool.py don't have what the steps need");
}
PyDoc_STRVAR(join_doc, "join(class): put the compiled steps in place of the functions of this class of the link.");
static PyObject *join(PyObject *module, PyObject *class) {
    PyObject *keeper = keeper_of(module), *type = PyObject_GetAttrString(module, "Step");
    bool done = false;
    if (keeper != NULL && type != NULL && PyType_Check(class)) {
        struct objects *has = &((struct known *)PyCapsule_GetPointer(keeper, NULL))->has;
        const char *name = ((PyTypeObject *)class)->tp_name;
        const struct { const char *name; PyObject **place; } classes[] = {
#define ZC_CLASS(word) {#word, &has->word},
            ZC_LINK_CLASSES(ZC_CLASS)
        };
        for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
            if (strcmp(classes[i].name, name) == 0 && (done = take_class((PyTypeObject *)type, keeper, name, class))) put(classes[i].place, Py_NewRef(class));
    }
    Py_XDECREF(type);
    Py_XDECREF(keeper);
    if (done) Py_RETURN_NONE;
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no compiled step is for %R", class);
}

int zc_add_steps(PyObject *module) {
    static PyMethodDef functions[] = {{"take_over", take_over, METH_VARARGS, take_over_doc}, {"join", join, METH_O, join_doc}, {NULL, NULL, 0, NULL}};
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    const int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) != 0 ? -1 : PyModule_AddFunctions(module, functions);
    Py_XDECREF(type);
    return failed;
}
