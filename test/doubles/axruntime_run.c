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
 * Instances of the runtime's double and how they run: see axruntime.c.
 */
#define _GNU_SOURCE
#include "axruntime_objects.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Set by a test: runs are counted from 1.
EXPORTED int double_fail_from, double_fail_count, double_fail_code;
EXPORTED int double_hang_at;

static pthread_cond_t unblocked = PTHREAD_COND_INITIALIZER;
static int hanging;

EXPORTED int double_is_hanging(void)
{
	pthread_mutex_lock(&lock);
	int answer = hanging;
	pthread_mutex_unlock(&lock);
	return answer;
}

EXPORTED void double_end_hang(void)
{
	pthread_mutex_lock(&lock);
	double_hang_at = 0;
	pthread_cond_broadcast(&unblocked);
	pthread_mutex_unlock(&lock);
}

static int number(axrProperties *properties, const char *key, int missing)
{
	const char *value = properties ? axr_get_property(properties, key) : NULL;
	return value ? atoi(value) : missing;
}

EXPORTED axrModelInstance *axr_load_model_instance(axrConnection *connection, axrModel *model, axrProperties *properties)
{
	static const char *const KNOWN[] = { "aipu_cores", "num_sub_devices", "input_dmabuf", "output_dmabuf", "double_buffer",
					     "device_profiling", "host_profiling", "elf_in_ddr" };
	if (!usable(connection, CONNECTION, "axr_load_model_instance") || !usable(model, MODEL, "axr_load_model_instance") ||
	    (properties && !usable(properties, PROPERTIES, "axr_load_model_instance")))
		return NULL;
	axrContext *context = connection->context;
	for (int i = 0; properties && i < properties->num_properties; i++) {
		bool known = false;
		for (size_t k = 0; k < sizeof(KNOWN) / sizeof(*KNOWN); k++)
			known = known || !strcmp(KNOWN[k], properties->keys[i]);
		if (!known) {
			fail(context, AXR_ERROR_INVALID_CONFIGURATION, "unknown property %s", properties->keys[i]);
			return NULL;
		}
	}
	int cores = number(properties, "aipu_cores", 0), sub_devices = number(properties, "num_sub_devices", 0);
	bool input_dmabuf = number(properties, "input_dmabuf", 0), output_dmabuf = number(properties, "output_dmabuf", 0);
	if (double_no_toolchain)
		fail(context, AXR_ERROR_RUNTIME_ERROR, "Failed to create executor for model: kernel_function");
	else if (sub_devices != (int)model->model.input.dims[0] || (size_t)sub_devices > connection->sub_devices)
		fail(context, AXR_ERROR_VALUE_ERROR, "num_sub_devices=%d, the batch is %zu and %zu are connected", sub_devices,
		     model->model.input.dims[0], connection->sub_devices);
	else if (cores < 1 || cores > 4)
		fail(context, AXR_ERROR_VALUE_ERROR, "aipu_cores=%d", cores);
	else if (input_dmabuf && double_refuse_input_dmabuf)
		fail(context, AXR_ERROR_NOT_IMPLEMENTED, "input_dmabuf is not supported by this driver");
	else if (output_dmabuf && double_refuse_output_dmabuf == 1)
		fail(context, AXR_ERROR_NOT_IMPLEMENTED, "output_dmabuf needs outputs that are not MMIO");
	else if (number(properties, "double_buffer", 0) && double_refuse_double_buffer)
		fail(context, AXR_ERROR_RUNTIME_ERROR, "no memory for double buffering");
	else {
		axrModelInstance *instance = create(INSTANCE, context);
		instance->connection = connection;
		instance->loaded = model;
		instance->input_dmabuf = input_dmabuf;
		instance->output_dmabuf = output_dmabuf;
		instance->double_buffer = number(properties, "double_buffer", 0);
		double_instances++;
		return instance;
	}
	return NULL;
}

static axrResult check(axrModelInstance *instance, const char *what, const axrArgument *argument, const axrTensorInfo *info, bool dmabuf)
{
	axrContext *context = instance->context;
	size_t size = tensor_size(info);
	if (argument->offset)
		return fail(context, AXR_ERROR_INVALID_ARGUMENT, "%s %s: offset %zu is not supported", what, info->name, argument->offset);
	if (argument->size && argument->size != size)
		return fail(context, AXR_ERROR_INVALID_ARGUMENT, "%s %s: size %zu, expected %zu", what, info->name, argument->size, size);
	if (dmabuf ? argument->ptr || argument->fd <= 0 : !argument->ptr || argument->fd > 0)
		return fail(context, AXR_ERROR_INVALID_ARGUMENT, "%s %s: a %s is needed", what, info->name, dmabuf ? "descriptor" : "pointer");
	if (dmabuf) {
		off_t end_of_file = lseek(argument->fd, 0, SEEK_END);
		if (end_of_file < (off_t)size || end_of_file % sysconf(_SC_PAGESIZE))
			return fail(context, AXR_ERROR_INVALID_ARGUMENT, "%s %s: descriptor %d has %lld bytes, not whole pages for %zu", what,
				    info->name, argument->fd, (long long)end_of_file, size);
	}
	return AXR_SUCCESS;
}

static int8_t *bytes_of(const axrArgument *argument, size_t size, int protection)
{
	if (argument->ptr)
		return argument->ptr;
	void *memory = mmap(NULL, size, protection, MAP_SHARED, argument->fd, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

static axrResult write_outputs(axrModelInstance *instance, const struct pending *input, const axrArgument *outputs)
{
	const struct model *model = &instance->loaded->model;
	int8_t *memory[MAX_OUTPUTS];
	for (int i = 0; i < model->num_outputs; i++) {
		memory[i] = bytes_of(&outputs[i], tensor_size(&model->outputs[i]), PROT_READ | PROT_WRITE);
		if (!memory[i])
			return fail(instance->context, AXR_ERROR_RUNTIME_ERROR, "output %d can't be mapped", i);
	}
	if (input)
		compute(model, input->bytes, memory);
	for (int i = 0; i < model->num_outputs; i++) {
		if (!input)	// nothing has come out of the pipeline yet
			memset(memory[i], 0x55, tensor_size(&model->outputs[i]));
		if (!outputs[i].ptr)
			munmap(memory[i], tensor_size(&model->outputs[i]));
	}
	return AXR_SUCCESS;
}

static axrResult run(axrModelInstance *instance, const axrArgument *inputs, size_t num_inputs, const axrArgument *outputs, size_t num_outputs)
{
	const struct model *model = &instance->loaded->model;
	axrContext *context = instance->context;
	axrResult result = AXR_SUCCESS;

	if (num_inputs != (size_t)model->num_inputs || num_outputs != (size_t)model->num_outputs)
		return fail(context, AXR_ERROR_INVALID_ARGUMENT, "%zu inputs and %zu outputs given", num_inputs, num_outputs);
	if ((result = check(instance, "input", &inputs[0], &model->input, instance->input_dmabuf)))
		return result;
	for (int i = 0; i < model->num_outputs; i++)
		if ((result = check(instance, "output", &outputs[i], &model->outputs[i], instance->output_dmabuf)))
			return result;
	if (instance->output_dmabuf && double_refuse_output_dmabuf == 2)
		return fail(context, AXR_ERROR_RUNTIME_ERROR, "outputs are MMIO");
	if (double_fail_from && double_runs >= double_fail_from && double_runs < double_fail_from + double_fail_count)
		return fail(context, (axrResult)double_fail_code, "injected into run %d", double_runs);

	struct pending input = { bytes_of(&inputs[0], tensor_size(&model->input), PROT_READ), inputs[0].ptr ? 0 : tensor_size(&model->input) };
	if (!input.bytes)
		return fail(context, AXR_ERROR_RUNTIME_ERROR, "the input can't be mapped");
	if (!instance->double_buffer) {
		result = write_outputs(instance, &input, outputs);
		end_pending(&input);
		return result;
	}
	result = write_outputs(instance, instance->queued == LATE_CALLS ? &instance->queue[0] : NULL, outputs);
	if (instance->queued == LATE_CALLS) {
		end_pending(&instance->queue[0]);
		instance->queue[0] = instance->queue[1];
		instance->queued--;
	}
	instance->queue[instance->queued++] = input;
	return result;
}

EXPORTED axrResult axr_run_model_instance(axrModelInstance *instance, axrArgument *inputs, size_t num_inputs, axrArgument *outputs,
					  size_t num_outputs)
{
	if (!usable(instance, INSTANCE, "axr_run_model_instance") || !usable(instance->connection, CONNECTION, "axr_run_model_instance") ||
	    !usable(instance->loaded, MODEL, "axr_run_model_instance"))
		return AXR_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&lock);
	double_runs++;
	while (double_hang_at && double_runs >= double_hang_at) {
		hanging = 1;
		pthread_cond_wait(&unblocked, &lock);
	}
	hanging = 0;
	axrResult result = run(instance, inputs, num_inputs, outputs, num_outputs);
	pthread_mutex_unlock(&lock);
	return result;
}
