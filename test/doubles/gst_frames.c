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
 * A GStreamer source for tests, `zcframes`: frames in whichever memory the test asks for, from a pool of as many as it asks for. It is
 * compiled against GStreamer's own headers, so that what the package reads by ctypes was written by somebody who knows the structs.
 *
 * Each frame's number is written, as one byte, to every byte of its planes. The memory is sealed memfds: GStreamer's dma-buf allocator
 * takes any descriptor. `crop` is of the frame, whose size is that of the caps, or `whole`: where an element crops, the caps have the
 * size of what is left. An event `-at` n comes n frames after the test has set `double_counts`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <gst/allocators/gstdmabuf.h>
#include <gst/base/gstpushsrc.h>
#include <gst/gst.h>
#include <gst/video/video.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_SETS 32

gint double_counts;

typedef struct {
	GstPushSrc parent;
	gchar *text, *later, *memory, *strides, *offsets, *crop, *whole, *exhausted;
	guint buffers, memories, size, start, step, error_at, change_at, silent_at, bad_at, skip_at, eos_at;
	gboolean live;
	guint rate;
	guint count, counted, made;
	gint unlocked;
	GstMemory *sets[MAX_SETS][GST_VIDEO_MAX_PLANES];
	gint64 next_us;
} Frames;
typedef struct { GstPushSrcClass parent; } FramesClass;

GType frames_get_type(void);
G_DEFINE_TYPE(Frames, frames, GST_TYPE_PUSH_SRC)

typedef struct { const char *name; gsize offset; } Text;
static const Text TEXTS[] = {
	{ "caps-text", G_STRUCT_OFFSET(Frames, text) },	  { "caps-later", G_STRUCT_OFFSET(Frames, later) },
	{ "memory", G_STRUCT_OFFSET(Frames, memory) },	  { "strides", G_STRUCT_OFFSET(Frames, strides) },
	{ "offsets", G_STRUCT_OFFSET(Frames, offsets) },  { "crop", G_STRUCT_OFFSET(Frames, crop) },
	{ "whole", G_STRUCT_OFFSET(Frames, whole) },	  { "exhausted", G_STRUCT_OFFSET(Frames, exhausted) },
};
static const Text NUMBERS[] = {
	{ "buffers", G_STRUCT_OFFSET(Frames, buffers) }, { "memories", G_STRUCT_OFFSET(Frames, memories) },
	{ "frame-size", G_STRUCT_OFFSET(Frames, size) }, { "start", G_STRUCT_OFFSET(Frames, start) },
	{ "step", G_STRUCT_OFFSET(Frames, step) },	 { "error-at", G_STRUCT_OFFSET(Frames, error_at) },
	{ "change-at", G_STRUCT_OFFSET(Frames, change_at) }, { "silent-at", G_STRUCT_OFFSET(Frames, silent_at) },
	{ "bad-at", G_STRUCT_OFFSET(Frames, bad_at) },	 { "skip-at", G_STRUCT_OFFSET(Frames, skip_at) },
	{ "eos-at", G_STRUCT_OFFSET(Frames, eos_at) },	 { "rate", G_STRUCT_OFFSET(Frames, rate) },
	{ "live", G_STRUCT_OFFSET(Frames, live) },
};

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
	(void)spec;
	if (id <= G_N_ELEMENTS(TEXTS))
		*(gchar **)((char *)object + TEXTS[id - 1].offset) = g_value_dup_string(value);
	else
		*(guint *)((char *)object + NUMBERS[id - 1 - G_N_ELEMENTS(TEXTS)].offset) = g_value_get_uint(value);
}

static int new_memfd(gsize size, gboolean sealed)
{
	int fd = memfd_create("frames", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, (off_t)size) || (sealed && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)))
		g_error("memfd: %s", g_strerror(errno));
	return fd;
}

static GstMemory *wrap(Frames *self, int fd, gsize size)
{
	static GstAllocator *dmabuf, *plain;
	if (!dmabuf) {
		dmabuf = gst_dmabuf_allocator_new();
		plain = gst_fd_allocator_new();
	}
	if (!strcmp(self->memory, "dmabuf"))
		return gst_dmabuf_allocator_alloc(dmabuf, fd, size);
	return gst_fd_allocator_alloc(plain, fd, size, GST_FD_MEMORY_FLAG_NONE);
}

/* The memories of one frame: `memories` descriptors, or as many parts of one (memories=0), each beginning `start` bytes inside. */
static void make_set(Frames *self, GstMemory **set)
{
	guint count = MAX(1, self->memories);
	gsize each = self->size / count;
	gboolean sealed = strcmp(self->memory, "unsealed") != 0;
	for (guint i = 0; i < count; i++) {
		GstMemory *whole = wrap(self, new_memfd(each + self->start, sealed), each + self->start);
		set[i] = whole;
		if (self->start) {
			set[i] = gst_memory_share(whole, self->start, (gssize)each);
			gst_memory_unref(whole);
		}
	}
	if (self->memories == 0) {
		GstMemory *whole = set[0];
		set[0] = gst_memory_share(whole, 0, (gssize)(each / 2));
		set[1] = gst_memory_share(whole, (gssize)(each / 2), (gssize)(each / 2));
		gst_memory_unref(whole);
	}
	self->made++;
}

static gboolean idle(GstMemory **set)
{
	for (int i = 0; i < GST_VIDEO_MAX_PLANES && set[i]; i++)
		if (GST_MINI_OBJECT_REFCOUNT_VALUE(set[i]) > 1)
			return FALSE;
	return TRUE;
}

static void drop_set(GstMemory **set)
{
	for (int i = 0; i < GST_VIDEO_MAX_PLANES && set[i]; i++) {
		gst_memory_unref(set[i]);
		set[i] = NULL;
	}
}

/* A part of a memory can't be mapped for writing, so memory with a descriptor is written through that. */
static void write_number(GstMemory *memory, int number)
{
	gsize offset, capacity, size = gst_memory_get_sizes(memory, &offset, &capacity);
	GstMapInfo map;
	if (gst_is_fd_memory(memory)) {
		char *bytes = mmap(NULL, offset + size, PROT_READ | PROT_WRITE, MAP_SHARED, gst_fd_memory_get_fd(memory), 0);
		if (bytes == MAP_FAILED)
			g_error("mmap: %s", g_strerror(errno));
		memset(bytes + offset, number, size);
		munmap(bytes, offset + size);
	} else if (gst_memory_map(memory, &map, GST_MAP_WRITE)) {
		memset(map.data, number, map.size);
		gst_memory_unmap(memory, &map);
	}
}

static GstBuffer *take(Frames *self)
{
	GstBuffer *buffer = gst_buffer_new();
	GstMemory *fresh[GST_VIDEO_MAX_PLANES] = { NULL }, **set = NULL;
	gboolean system = !strcmp(self->memory, "system");
	if (!system && self->buffers == 0) {
		make_set(self, set = fresh);
	} else if (!system) {
		while (!set) {
			for (guint i = 0; i < self->buffers && !set; i++) {
				if (!self->sets[i][0])
					make_set(self, self->sets[i]);
				if (idle(self->sets[i]))
					set = self->sets[i];
			}
			if (!set && self->exhausted && !strcmp(self->exhausted, "copy")) {
				system = TRUE;
				break;
			}
			if (!set && g_atomic_int_get(&self->unlocked)) {
				gst_buffer_unref(buffer);
				return NULL;
			}
			if (!set)
				g_usleep(500);
		}
	}
	if (system)
		gst_buffer_append_memory(buffer, gst_allocator_alloc(NULL, self->size, NULL));
	else
		for (int i = 0; i < GST_VIDEO_MAX_PLANES && set[i]; i++)
			gst_buffer_append_memory(buffer, gst_memory_ref(set[i]));
	for (guint i = 0; i < gst_buffer_n_memory(buffer); i++)
		write_number(gst_buffer_peek_memory(buffer, i), (int)self->count);
	if (set == fresh)
		drop_set(fresh);
	return buffer;
}

static guint numbers(const gchar *text, gint64 *out, guint most)
{
	gchar **words = g_strsplit(text ? text : "", ",", -1);
	guint count = 0;
	for (; words[count] && *words[count] && count < most; count++)
		out[count] = g_ascii_strtoll(words[count], NULL, 10);
	g_strfreev(words);
	return count;
}

static void size_of(Frames *self, gint64 *size)
{
	GstCaps *caps = gst_pad_get_current_caps(GST_BASE_SRC_PAD(self));
	gint width = 0, height = 0;
	if (caps) {
		gst_structure_get(gst_caps_get_structure(caps, 0), "width", G_TYPE_INT, &width, "height", G_TYPE_INT, &height, NULL);
		gst_caps_unref(caps);
	}
	size[0] = width;
	size[1] = height;
	numbers(self->whole, size, 2);
}

static void describe(Frames *self, GstBuffer *buffer)
{
	gint64 values[4], whole[2];
	gsize offsets[GST_VIDEO_MAX_PLANES] = { 0 };
	gint strides[GST_VIDEO_MAX_PLANES] = { 0 };
	guint planes = numbers(self->strides, values, 4);
	if (planes) {
		for (guint i = 0; i < planes; i++)
			strides[i] = (gint)values[i];
		numbers(self->offsets, values, planes);
		for (guint i = 0; i < planes; i++)
			offsets[i] = (gsize)values[i];
		size_of(self, whole);
		gst_buffer_add_video_meta_full(buffer, GST_VIDEO_FRAME_FLAG_NONE, GST_VIDEO_FORMAT_NV12, (guint)whole[0], (guint)whole[1],
					       planes, offsets, strides);
	}
	if (numbers(self->crop, values, 4) == 4) {
		GstVideoCropMeta *crop = gst_buffer_add_video_crop_meta(buffer);
		crop->x = (guint)values[0];
		crop->y = (guint)values[1];
		crop->width = (guint)values[2];
		crop->height = (guint)values[3];
	}
}

static GstFlowReturn create(GstPushSrc *source, GstBuffer **out)
{
	Frames *self = (Frames *)source;
	guint now = self->count, at = self->counted;
	gint64 period = G_USEC_PER_SEC / MAX(1, self->rate);
	if (self->eos_at && at == self->eos_at)
		return GST_FLOW_EOS;
	if (self->error_at && at == self->error_at) {
		GST_ELEMENT_ERROR(self, RESOURCE, READ, ("The cable was pulled"), ("poll said POLLERR"));
		return GST_FLOW_ERROR;
	}
	while (self->silent_at && at == self->silent_at && !g_atomic_int_get(&self->unlocked))
		g_usleep(1000);
	if (self->live) {
		if (!self->next_us)
			self->next_us = g_get_monotonic_time();
		gint64 wait = self->next_us - g_get_monotonic_time();
		if (wait > 0)
			g_usleep((gulong)wait);
		self->next_us = MAX(self->next_us, g_get_monotonic_time() - period) + period;
	}
	if (self->change_at && at == self->change_at) {
		GstCaps *caps = gst_caps_from_string(self->later);
		gst_base_src_set_caps(GST_BASE_SRC(source), caps);
		gst_caps_unref(caps);
	}
	if (g_atomic_int_get(&self->unlocked))
		return GST_FLOW_FLUSHING;
	GstBuffer *buffer = take(self);
	if (!buffer)
		return GST_FLOW_FLUSHING;
	describe(self, buffer);
	if (self->skip_at && at == self->skip_at)
		self->step++;
	if (self->bad_at && at == self->bad_at)
		GST_BUFFER_FLAG_SET(buffer, GST_BUFFER_FLAG_CORRUPTED);
	if (!self->live)
		GST_BUFFER_PTS(buffer) = now * (guint64)period * 1000;
	GST_BUFFER_OFFSET(buffer) = now + self->step;
	GST_BUFFER_OFFSET_END(buffer) = now + self->step + 1;
	self->count++;
	self->counted += (guint)g_atomic_int_get(&double_counts);
	*out = buffer;
	return GST_FLOW_OK;
}

static GstCaps *get_caps(GstBaseSrc *source, GstCaps *filter)
{
	(void)filter;
	Frames *self = (Frames *)source;
	GstCaps *caps = gst_caps_from_string(self->text);
	if (self->later)
		gst_caps_append(caps, gst_caps_from_string(self->later));
	return caps;
}

static gboolean start(GstBaseSrc *source)
{
	Frames *self = (Frames *)source;
	gst_base_src_set_live(source, self->live);
	gst_base_src_set_do_timestamp(source, self->live);
	self->count = self->counted = 0;
	return TRUE;
}

static gboolean stop(GstBaseSrc *source)
{
	Frames *self = (Frames *)source;
	for (int i = 0; i < MAX_SETS; i++)
		drop_set(self->sets[i]);
	return TRUE;
}

static gboolean unlock(GstBaseSrc *source)
{
	g_atomic_int_set(&((Frames *)source)->unlocked, 1);
	return TRUE;
}

static gboolean unlock_stop(GstBaseSrc *source)
{
	g_atomic_int_set(&((Frames *)source)->unlocked, 0);
	return TRUE;
}

/* Liveness is asked for before `start`. */
static GstStateChangeReturn change_state(GstElement *element, GstStateChange change)
{
	Frames *self = (Frames *)element;
	if (change == GST_STATE_CHANGE_NULL_TO_READY)
		gst_base_src_set_live(GST_BASE_SRC(element), self->live);
	return GST_ELEMENT_CLASS(frames_parent_class)->change_state(element, change);
}

static void frames_class_init(FramesClass *klass)
{
	static GstStaticPadTemplate any = GST_STATIC_PAD_TEMPLATE("src", GST_PAD_SRC, GST_PAD_ALWAYS, GST_STATIC_CAPS_ANY);
	GObjectClass *object = G_OBJECT_CLASS(klass);
	object->set_property = set_property;
	for (guint i = 0; i < G_N_ELEMENTS(TEXTS); i++)
		g_object_class_install_property(object, i + 1, g_param_spec_string(TEXTS[i].name, "", "", NULL, G_PARAM_WRITABLE));
	for (guint i = 0; i < G_N_ELEMENTS(NUMBERS); i++)
		g_object_class_install_property(object, i + 1 + G_N_ELEMENTS(TEXTS),
						g_param_spec_uint(NUMBERS[i].name, "", "", 0, G_MAXUINT, 0, G_PARAM_WRITABLE));
	gst_element_class_add_static_pad_template(GST_ELEMENT_CLASS(klass), &any);
	gst_element_class_set_static_metadata(GST_ELEMENT_CLASS(klass), "frames", "Source/Video", "frames for tests", "zc_perception");
	GST_ELEMENT_CLASS(klass)->change_state = change_state;
	GST_BASE_SRC_CLASS(klass)->get_caps = get_caps;
	GST_BASE_SRC_CLASS(klass)->start = start;
	GST_BASE_SRC_CLASS(klass)->stop = stop;
	GST_BASE_SRC_CLASS(klass)->unlock = unlock;
	GST_BASE_SRC_CLASS(klass)->unlock_stop = unlock_stop;
	GST_PUSH_SRC_CLASS(klass)->create = create;
}

static void frames_init(Frames *self)
{
	self->memory = g_strdup("dmabuf");
	self->buffers = 4;
	self->memories = 1;
	self->rate = 200;
	gst_base_src_set_format(GST_BASE_SRC(self), GST_FORMAT_TIME);
}

static gboolean plugin_init(GstPlugin *plugin)
{
	return gst_element_register(plugin, "zcframes", GST_RANK_NONE, frames_get_type());
}

#define PACKAGE "zcframes"
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, zcframes, "frames for tests", plugin_init, "1.0", "Apache 2.0", "zc", "https://example.org")
