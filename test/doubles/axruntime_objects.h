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
/* The objects of the runtime's double, for its own files: see axruntime.c. */
#ifndef AXRUNTIME_OBJECTS_H
#define AXRUNTIME_OBJECTS_H

#include "axruntime_model.h"

#include <pthread.h>

#define MAX_PROPERTIES 32
#define LATE_CALLS 2
#define EXPORTED __attribute__((visibility("default")))

enum kind { CONTEXT, PROPERTIES, CONNECTION, MODEL, INSTANCE };

struct pending { int8_t *bytes; size_t mapped; };

struct axrObject {
	enum kind kind;
	bool alive;
	axrContext *context;
	axrObject *next;			// context: its objects
	axrResult error;			// context
	char message[512];
	axrDeviceInfo devices[4];
	char keys[MAX_PROPERTIES][32], values[MAX_PROPERTIES][64];
	int num_properties;
	struct model model;
	axrConnection *connection;		// instance
	axrModel *loaded;
	int device;				// connection
	size_t sub_devices;
	bool input_dmabuf, output_dmabuf, double_buffer;
	struct pending queue[LATE_CALLS];
	int queued;
};

extern pthread_mutex_t lock;
extern int double_refuse_input_dmabuf, double_refuse_output_dmabuf, double_refuse_double_buffer, double_no_toolchain;
extern int double_instances, double_runs;

void misuse(const char *format, ...);
bool usable(const axrObject *object, enum kind kind, const char *where);
axrResult fail(axrContext *context, axrResult code, const char *format, ...);
axrObject *create(enum kind kind, axrContext *context);
void end_pending(struct pending *entry);

#endif
