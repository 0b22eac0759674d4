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
 * A stand-in for `nvarguscamerasrc`: a live source whose buffers, when they are mapped, are NvBufSurfaces of the double of
 * libnvbufsurface (its path is in NVBUF_LIBRARY; it must be built with the same options as this).
 *
 * Row r of each plane of frame n is n + r all over. "Block-linear" is what the double of the transform library takes for it: the rows of a
 * plane stand in the opposite order. Properties that begin with `double-` say what kind of frames it makes; ARGUS_DOUBLE=underscores in the
 * environment is a release whose properties are written with them. `double-change-at` counts the frames since the test has set
 * `double_counts`.
 */
#define _GNU_SOURCE
#include "nvbufsurface.h"

#include <dlfcn.h>
#include <gst/base/gstpushsrc.h>
#include <gst/gst.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SURFACES 6

gint double_counts;

typedef struct {
	GstPushSrc parent;
	guint color, layout, junk, memory_type, change_at;
	gint sensor, mode;
	gboolean new_interface;
	gint width, height, rate_n, rate_d;
	guint count, counted;
	gint unlocked;
	gint64 next_us;
	NvBufSurface *surfaces[SURFACES];
	uint8_t *bytes[SURFACES];
	GstMemory *memories[SURFACES];
	int (*make)(NvBufSurface **, uint32_t, NvBufSurfaceCreateParams *);
	int (*destroy)(NvBufSurface *);
} Argus;
typedef struct { GstPushSrcClass parent; } ArgusClass;

GType argus_get_type(void);
G_DEFINE_TYPE(Argus, argus, GST_TYPE_PUSH_SRC)

enum { SENSOR = 1, MODE, INTERFACE, COLOR, LAYOUT, JUNK, MEMORY_TYPE, CHANGE_AT };

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
	Argus *self = (Argus *)object;
	(void)spec;
	switch (id) {
	case SENSOR: self->sensor = g_value_get_int(value); break;
	case MODE: self->mode = g_value_get_int(value); break;
	case INTERFACE: self->new_interface = g_value_get_boolean(value); break;
	case COLOR: self->color = g_value_get_uint(value); break;
	case LAYOUT: self->layout = g_value_get_uint(value); break;
	case JUNK: self->junk = g_value_get_uint(value); break;
	case MEMORY_TYPE: self->memory_type = g_value_get_uint(value); break;
	case CHANGE_AT: self->change_at = g_value_get_uint(value); break;
	}
}

static gboolean start(GstBaseSrc *source)
{
	Argus *self = (Argus *)source;
	void *library = dlopen(getenv("NVBUF_LIBRARY"), RTLD_NOW);
	if (!library || self->sensor > 1) {
		GST_ELEMENT_ERROR(self, RESOURCE, NOT_FOUND, ("No cameras available"), ("sensor %d of 2", self->sensor));
		return FALSE;
	}
	*(void **)&self->make = dlsym(library, "NvBufSurfaceCreate");
	*(void **)&self->destroy = dlsym(library, "NvBufSurfaceDestroy");
	return TRUE;
}

static void drop_all(Argus *self)
{
	for (int i = 0; i < SURFACES; i++)
		g_clear_pointer(&self->memories[i], gst_memory_unref);
}

static gboolean stop(GstBaseSrc *source)
{
	drop_all((Argus *)source);
	return TRUE;
}

typedef struct { NvBufSurface *surface; int (*destroy)(NvBufSurface *); void *bytes; } Owned;

static void end(gpointer data)
{
	Owned *owned = data;
	munmap(owned->bytes, owned->surface->surfaceList[0].dataSize);
	owned->destroy(owned->surface);
	free(owned);
}

static void make(Argus *self, int i, gint width)
{
	NvBufSurfaceCreateParams wanted = { .width = (uint32_t)width, .height = (uint32_t)self->height, .colorFormat = self->color,
					    .layout = self->layout, .memType = NVBUF_MEM_SURFACE_ARRAY };
	Owned *owned = calloc(1, sizeof(*owned));
	if (self->make(&owned->surface, 1, &wanted))
		g_error("no surface of %dx%d", width, self->height);
	owned->surface->numFilled = 1;
	/* Mapped once: a memfd that is handed to another process takes no new writers. */
	owned->bytes = mmap(NULL, owned->surface->surfaceList[0].dataSize, PROT_READ | PROT_WRITE, MAP_SHARED,
			    (int)owned->surface->surfaceList[0].bufferDesc, 0);
	if (owned->bytes == MAP_FAILED)
		g_error("no mapping of %dx%d", width, self->height);
	self->bytes[i] = owned->bytes;
	if (self->memory_type)
		owned->surface->memType = self->memory_type;
	owned->destroy = self->destroy;
	self->surfaces[i] = owned->surface;
	self->memories[i] = gst_memory_new_wrapped(GST_MEMORY_FLAG_READONLY, owned->surface, sizeof(NvBufSurface), 0,
						   self->junk ? self->junk : sizeof(NvBufSurface), owned, end);
}

static void paint(Argus *self, const NvBufSurface *surface, uint8_t *bytes)
{
	const NvBufSurfaceParams *image = &surface->surfaceList[0];
	for (uint32_t p = 0; p < image->planeParams.num_planes; p++)
		for (uint32_t r = 0; r < image->planeParams.height[p]; r++) {
			uint32_t at = self->layout == NVBUF_LAYOUT_BLOCK_LINEAR ? image->planeParams.height[p] - 1 - r : r;
			memset(bytes + image->planeParams.offset[p] + (size_t)at * image->planeParams.pitch[p], (int)(self->count + r),
			       image->planeParams.pitch[p]);
		}
}

static GstFlowReturn create(GstPushSrc *source, GstBuffer **out)
{
	Argus *self = (Argus *)source;
	gint64 period = G_USEC_PER_SEC * self->rate_d / MAX(1, self->rate_n);
	if (!self->next_us)
		self->next_us = g_get_monotonic_time();
	while (g_get_monotonic_time() < self->next_us && !g_atomic_int_get(&self->unlocked))
		g_usleep(500);
	self->next_us = MAX(self->next_us, g_get_monotonic_time() - period) + period;
	if (self->change_at && self->counted == self->change_at)
		drop_all(self);
	int found = -1;
	while (found < 0) {
		for (int i = 0; i < SURFACES && found < 0; i++) {
			if (!self->memories[i])
				make(self, i, self->change_at && self->counted >= self->change_at ? self->width / 2 : self->width);
			if (GST_MINI_OBJECT_REFCOUNT_VALUE(self->memories[i]) == 1)
				found = i;
		}
		if (g_atomic_int_get(&self->unlocked))
			return GST_FLOW_FLUSHING;
		if (found < 0)
			g_usleep(500);
	}
	paint(self, self->surfaces[found], self->bytes[found]);
	*out = gst_buffer_new();
	gst_buffer_append_memory(*out, gst_memory_ref(self->memories[found]));
	GST_BUFFER_OFFSET(*out) = self->count++;
	self->counted += (guint)g_atomic_int_get(&double_counts);
	return GST_FLOW_OK;
}

static gboolean set_caps(GstBaseSrc *source, GstCaps *caps)
{
	Argus *self = (Argus *)source;
	const GstStructure *first = gst_caps_get_structure(caps, 0);
	gst_structure_get_int(first, "width", &self->width);
	gst_structure_get_int(first, "height", &self->height);
	return gst_structure_get_fraction(first, "framerate", &self->rate_n, &self->rate_d);
}

static GstCaps *fixate(GstBaseSrc *source, GstCaps *caps)
{
	caps = gst_caps_make_writable(caps);
	GstStructure *first = gst_caps_get_structure(caps, 0);
	gst_structure_fixate_field_nearest_int(first, "width", 640);
	gst_structure_fixate_field_nearest_int(first, "height", 360);
	gst_structure_fixate_field_nearest_fraction(first, "framerate", 200, 1);
	return GST_BASE_SRC_CLASS(argus_parent_class)->fixate(source, caps);
}

static gboolean unlock(GstBaseSrc *source)
{
	g_atomic_int_set(&((Argus *)source)->unlocked, 1);
	return TRUE;
}

static gboolean unlock_stop(GstBaseSrc *source)
{
	g_atomic_int_set(&((Argus *)source)->unlocked, 0);
	return TRUE;
}

static void number(GObjectClass *object, guint id, const char *name)
{
	g_object_class_install_property(object, id, g_param_spec_uint(name, "", "", 0, G_MAXUINT, 0, G_PARAM_WRITABLE));
}

static void argus_class_init(ArgusClass *klass)
{
	static GstStaticPadTemplate nvmm = GST_STATIC_PAD_TEMPLATE(
		"src", GST_PAD_SRC, GST_PAD_ALWAYS,
		GST_STATIC_CAPS("video/x-raw(memory:NVMM), format=(string)NV12, width=(int)[1,MAX], height=(int)[1,MAX], framerate=(fraction)[1/1,1000/1]"));
	const char *words = getenv("ARGUS_DOUBLE");
	gboolean old = words && !strcmp(words, "underscores");
	GObjectClass *object = G_OBJECT_CLASS(klass);
	object->set_property = set_property;
	g_object_class_install_property(object, SENSOR, g_param_spec_int(old ? "sensor_id" : "sensor-id", "", "", 0, 9, 0, G_PARAM_WRITABLE));
	g_object_class_install_property(object, MODE, g_param_spec_int(old ? "sensor_mode" : "sensor-mode", "", "", -1, 9, -1, G_PARAM_WRITABLE));
	if (old)
		g_object_class_install_property(object, INTERFACE, g_param_spec_boolean("bufapi-version", "", "", FALSE, G_PARAM_WRITABLE));
	number(object, COLOR, "double-color");
	number(object, LAYOUT, "double-layout");
	number(object, JUNK, "double-junk");
	number(object, MEMORY_TYPE, "double-memory-type");
	number(object, CHANGE_AT, "double-change-at");
	gst_element_class_add_static_pad_template(GST_ELEMENT_CLASS(klass), &nvmm);
	gst_element_class_set_static_metadata(GST_ELEMENT_CLASS(klass), "argus", "Source/Video", "NVMM frames for tests", "zc_perception");
	GST_BASE_SRC_CLASS(klass)->start = start;
	GST_BASE_SRC_CLASS(klass)->stop = stop;
	GST_BASE_SRC_CLASS(klass)->set_caps = set_caps;
	GST_BASE_SRC_CLASS(klass)->fixate = fixate;
	GST_BASE_SRC_CLASS(klass)->unlock = unlock;
	GST_BASE_SRC_CLASS(klass)->unlock_stop = unlock_stop;
	GST_PUSH_SRC_CLASS(klass)->create = create;
}

static void argus_init(Argus *self)
{
	self->color = NVBUF_COLOR_FORMAT_NV12;
	gst_base_src_set_format(GST_BASE_SRC(self), GST_FORMAT_TIME);
	gst_base_src_set_live(GST_BASE_SRC(self), TRUE);
	gst_base_src_set_do_timestamp(GST_BASE_SRC(self), TRUE);
}

static gboolean plugin_init(GstPlugin *plugin)
{
	return gst_element_register(plugin, "nvarguscamerasrc", GST_RANK_NONE, argus_get_type());
}

#define PACKAGE "zcargus"
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, zcargus, "NVMM frames for tests", plugin_init, "1.0", "Apache 2.0", "zc", "https://example.org")
