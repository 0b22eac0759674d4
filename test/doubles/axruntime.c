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
 * A stand-in for Axelera's libaxruntime.so, written from its documented interface (axruntime.h beside this file) and the documented
 * behaviour alone, not from the package that is tested with it. It is strict where the documentation asks for something: argument
 * sizes, offset 0, descriptor or pointer, objects that live and are destroyed in order, devices that are exclusive.
 *
 * The "model" is a real computation on the input tensor's bytes (axruntime_model.c). With double_buffer the result of call n is written
 * into the outputs of call n + 2, and the input of call n is read only then, as late as a device could: whoever reuses it earlier gets
 * another frame's result (axruntime_run.c).
 *
 * -DLATER_RELEASE: axrDeviceInfo has grown. What a test may set and ask stands below as double_*.
 */
#define _GNU_SOURCE
#include "axruntime_objects.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char *const KIND_NAMES[] = { "context", "properties", "connection", "model", "instance" };

// Set by a test.
EXPORTED int double_devices = 2;
EXPORTED int double_foreign_sub_devices;	// of device 0, held by another process
EXPORTED int double_refuse_input_dmabuf;	// when the instance is loaded
EXPORTED int double_refuse_output_dmabuf;	// 1: when the instance is loaded, 2: when it runs
EXPORTED int double_refuse_double_buffer;
EXPORTED int double_no_toolchain;
EXPORTED int double_old_model;
EXPORTED int double_api_version = 0x010600;
EXPORTED int double_wrong_tensor_size;
// Read by a test.
EXPORTED int double_runs, double_live_objects, double_misuses, double_used_sub_devices[4];
EXPORTED int double_instances;
EXPORTED char double_first_misuse[512];

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

extern int double_fail_from, double_fail_count, double_fail_code, double_hang_at;

EXPORTED void double_reset(void)
{
	double_devices = 2;
	double_api_version = 0x010600;
	double_old_model = 0;
	double_foreign_sub_devices = double_refuse_input_dmabuf = double_refuse_output_dmabuf = double_refuse_double_buffer = 0;
	double_fail_from = double_fail_count = double_fail_code = double_hang_at = double_no_toolchain = double_wrong_tensor_size = 0;
	double_runs = double_misuses = double_instances = 0;
	double_first_misuse[0] = 0;
}

void misuse(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	if (!double_misuses++)
		vsnprintf(double_first_misuse, sizeof(double_first_misuse), format, arguments);
	va_end(arguments);
}

bool usable(const axrObject *object, enum kind kind, const char *where)
{
	if (!object || !object->alive || object->kind != kind) {
		misuse("%s: %s needs a living %s", where, object && !object->alive ? "destroyed object," : "", KIND_NAMES[kind]);
		return false;
	}
	return true;
}

axrResult fail(axrContext *context, axrResult code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	context->error = code;
	vsnprintf(context->message, sizeof(context->message), format, arguments);
	va_end(arguments);
	return code;
}

axrObject *create(enum kind kind, axrContext *context)
{
	axrObject *object = calloc(1, sizeof(*object));	// never freed, so that later use is noticed
	object->kind = kind;
	object->alive = true;
	object->context = context ? context : object;
	if (context) {
		object->next = context->next;
		context->next = object;
	}
	double_live_objects++;
	return object;
}

EXPORTED unsigned int axr_api_version(void) { return (unsigned int)double_api_version; }

EXPORTED axrContext *axr_create_context(void) { return create(CONTEXT, NULL); }

void end_pending(struct pending *entry)
{
	if (entry->mapped)
		munmap(entry->bytes, entry->mapped);
}

static void end(axrObject *object)
{
	object->alive = false;
	double_live_objects--;
	if (object->kind == CONNECTION)
		double_used_sub_devices[object->device] -= (int)object->sub_devices;
	for (int i = 0; i < object->queued; i++)
		end_pending(&object->queue[i]);
	object->queued = 0;
}

EXPORTED void axr_destroy(const axrObject *constant)
{
	axrObject *object = (axrObject *)constant;
	pthread_mutex_lock(&lock);
	if (!object || !object->alive) {
		misuse("axr_destroy of %s", object ? "what was destroyed before" : "NULL");
	} else if (object->kind == CONTEXT) {
		for (axrObject *child = object->next; child; child = child->next)
			if (child->alive)
				end(child);
		end(object);
	} else {
		for (axrObject *other = object->context->next; other; other = other->next)
			if (other->alive && other->kind == INSTANCE && (other->connection == object || other->loaded == object))
				misuse("axr_destroy of a %s before its instance", KIND_NAMES[object->kind]);
		end(object);
	}
	pthread_mutex_unlock(&lock);
}

EXPORTED axrResult axr_last_error(const axrObject *object) { return object->context->error; }

EXPORTED const char *axr_last_error_string(const axrObject *object) { return object->context->message; }

EXPORTED const char *axr_error_string(axrResult result)
{
	return result == AXR_SUCCESS ? "success" : "error";
}

EXPORTED size_t axr_list_devices(axrContext *context, axrDeviceInfo **devices)
{
	if (!usable(context, CONTEXT, "axr_list_devices"))
		return 0;
	for (int i = 0; i < double_devices; i++) {
		axrDeviceInfo *info = &context->devices[i];
		memset(info, 0, sizeof(*info));
		snprintf(info->name, sizeof(info->name), "metis-%d:%d:0", i, 2 * i + 1);
		info->subdevice_count = 4;
		info->board_type = i ? AXR_BOARD_METIS_OMEGA_PCIE : AXR_BOARD_METIS_OMEGA_M2;
		snprintf(info->firmware_version, sizeof(info->firmware_version), "v1.6.0-double");
		info->board_revision = 3;
	}
	if (!double_devices)
		fail(context, AXR_ERROR_CONNECTION_ERROR, "no devices found");
	if (devices)
		*devices = context->devices;
	return (size_t)double_devices;
}

EXPORTED void axr_set_property(axrProperties *properties, const char *key, const char *value)
{
	int i = 0;
	if (!usable(properties, PROPERTIES, "axr_set_property"))
		return;
	while (i < properties->num_properties && strcmp(properties->keys[i], key))
		i++;
	if (i == MAX_PROPERTIES)
		return;
	snprintf(properties->keys[i], sizeof(properties->keys[i]), "%s", key);
	snprintf(properties->values[i], sizeof(properties->values[i]), "%s", value);
	if (i == properties->num_properties)
		properties->num_properties++;
}

EXPORTED const char *axr_get_property(axrProperties *properties, const char *key)
{
	if (usable(properties, PROPERTIES, "axr_get_property"))
		for (int i = 0; i < properties->num_properties; i++)
			if (!strcmp(properties->keys[i], key))
				return properties->values[i];
	return NULL;
}

EXPORTED axrProperties *axr_create_properties(axrContext *context, const char *initial)
{
	if (!usable(context, CONTEXT, "axr_create_properties"))
		return NULL;
	axrProperties *properties = create(PROPERTIES, context);
	char *rest, *copy = strdup(initial ? initial : "");
	// Newlines separate, as documented.
	for (char *pair = strtok_r(copy, "\n", &rest); pair; pair = strtok_r(NULL, "\n", &rest)) {
		char *equals = strchr(pair, '=');
		if (equals) {
			*equals = 0;
			axr_set_property(properties, pair, equals + 1);
		}
	}
	free(copy);
	return properties;
}

EXPORTED axrConnection *axr_device_connect(axrContext *context, axrDeviceInfo *device, size_t num_sub_devices, axrProperties *properties)
{
	if (!usable(context, CONTEXT, "axr_device_connect") || (properties && !usable(properties, PROPERTIES, "axr_device_connect")))
		return NULL;
	int chosen = 0;
	if (device) {
		axr_list_devices(context, NULL);
		while (chosen < double_devices && strcmp(device->name, context->devices[chosen].name))
			chosen++;
	}
	if (chosen >= double_devices) {
		fail(context, AXR_ERROR_CONNECTION_ERROR, "no such device");
		return NULL;
	}
	if (!num_sub_devices || num_sub_devices > 4) {
		fail(context, AXR_ERROR_VALUE_ERROR, "%zu sub-devices asked of 4", num_sub_devices);
		return NULL;
	}
	pthread_mutex_lock(&lock);
	int used = double_used_sub_devices[chosen] + (chosen ? 0 : double_foreign_sub_devices);
	axrConnection *connection = NULL;
	if (used + (int)num_sub_devices > 4) {
		fail(context, AXR_ERROR_DEVICE_IN_USE, "%d of 4 sub-devices are in use", used);
	} else {
		double_used_sub_devices[chosen] += (int)num_sub_devices;
		connection = create(CONNECTION, context);
		connection->device = chosen;
		connection->sub_devices = num_sub_devices;
	}
	pthread_mutex_unlock(&lock);
	return connection;
}

EXPORTED axrModel *axr_load_model(axrContext *context, const char *path)
{
	if (!usable(context, CONTEXT, "axr_load_model"))
		return NULL;
	if (double_old_model) {
		fail(context, AXR_ERROR_RUNTIME_ERROR, "Unsupported model version: 4.0, expected at least 5.0");
		return NULL;
	}
	struct model model;
	if (!read_model(&model, path)) {
		fail(context, AXR_ERROR_VALUE_ERROR, "%s is no compiled model", path);
		return NULL;
	}
	axrModel *object = create(MODEL, context);
	object->model = model;
	return object;
}

EXPORTED axrProperties *axr_get_model_properties(axrModel *model)
{
	if (!usable(model, MODEL, "axr_get_model_properties"))
		return NULL;
	return axr_create_properties(model->context, "input_tensor_layout=NHWC\npostamble_graph=postprocess_graph.onnx");
}

EXPORTED size_t axr_num_model_inputs(axrModel *model)
{
	return usable(model, MODEL, "axr_num_model_inputs") ? (size_t)model->model.num_inputs : 0;
}

EXPORTED size_t axr_num_model_outputs(axrModel *model)
{
	return usable(model, MODEL, "axr_num_model_outputs") ? (size_t)model->model.num_outputs : 0;
}

EXPORTED axrTensorInfo axr_get_model_input(axrModel *model, size_t index)
{
	axrTensorInfo nothing = { .ndims = 0 };
	if (!usable(model, MODEL, "axr_get_model_input"))
		return nothing;
	if (index >= (size_t)model->model.num_inputs) {
		fail(model->context, AXR_ERROR_INVALID_ARGUMENT, "input %zu does not exist", index);
		return nothing;
	}
	return model->model.input;
}

EXPORTED axrTensorInfo axr_get_model_output(axrModel *model, size_t index)
{
	axrTensorInfo nothing = { .ndims = 0 };
	if (!usable(model, MODEL, "axr_get_model_output"))
		return nothing;
	if (index >= (size_t)model->model.num_outputs) {
		fail(model->context, AXR_ERROR_INVALID_ARGUMENT, "output %zu does not exist", index);
		return nothing;
	}
	return model->model.outputs[index];
}

EXPORTED size_t axr_tensor_size(const axrTensorInfo *info)
{
	return tensor_size(info) + (size_t)double_wrong_tensor_size;
}
