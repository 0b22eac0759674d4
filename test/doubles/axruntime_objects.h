/* SPDX-License-Identifier: Apache-2.0 */
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
