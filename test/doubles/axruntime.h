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
 * The C interface of Axelera's libaxruntime, written from the tables of its documented API reference (Voyager SDK, axruntime.md) alone:
 * the structs have the documented fields in the documented order, and their offsets are whatever the C compiler makes of that.
 *
 * test/npu/test_abi.py reads this file: one declaration per line.
 */
#ifndef AXRUNTIME_DOUBLE_H
#define AXRUNTIME_DOUBLE_H

#include <stddef.h>

#define AXR_MAX_TENSOR_DIMS 8

typedef enum {
	AXR_SUCCESS,
	AXR_ERROR_RUNTIME_ERROR,
	AXR_ERROR_VALUE_ERROR,
	AXR_ERROR_INVALID_ARGUMENT,
	AXR_ERROR_CONNECTION_ERROR,
	AXR_ERROR_DEVICE_IN_USE,
	AXR_ERROR_INCOMPATIBLE_DEVICE,
	AXR_ERROR_INVALID_CONFIGURATION,
	AXR_ERROR_NOT_IMPLEMENTED,
	AXR_ERROR_INTERNAL_ERROR,
	AXR_ERROR_PENDING_ERROR,
	AXR_ERROR_UNKNOWN_ERROR,
} axrResult;

typedef enum {
	AXR_BOARD_METIS_UNUSED1,
	AXR_BOARD_METIS_UNUSED2,
	AXR_BOARD_METIS_OMEGA_PCIE,
	AXR_BOARD_METIS_OMEGA_M2,
} axrBoardType;

typedef enum {
	AXR_UNSIGNED,
	AXR_SIGNED,
	AXR_FLOAT,
} axrTensorDataType;

typedef struct {
	void *ptr;
	int fd;
	size_t offset;
	size_t size;
} axrArgument;

typedef struct {
	char name[256];
	size_t subdevice_count;
	size_t max_memory;
	int in_use;
	char in_use_by[256];
	axrBoardType board_type;
	char firmware_version[256];
	int board_revision;
	char flashed_firmware_version[256];
	char board_controller_firmware_version[256];
	char board_controller_board_type[256];
#ifdef LATER_RELEASE
	size_t something_new[5];
#endif
} axrDeviceInfo;

typedef struct {
	size_t dims[AXR_MAX_TENSOR_DIMS];
	size_t ndims;
	size_t bits;
	size_t type;
	char name[256];
	size_t padding[AXR_MAX_TENSOR_DIMS][2];
	double scale;
	int zero_point;
} axrTensorInfo;

typedef struct axrObject axrObject;
typedef struct axrObject axrContext;
typedef struct axrObject axrProperties;
typedef struct axrObject axrModel;
typedef struct axrObject axrConnection;
typedef struct axrObject axrModelInstance;

unsigned int axr_api_version(void);
axrContext *axr_create_context(void);
void axr_destroy(const axrObject *object);
axrResult axr_last_error(const axrObject *object);
const char *axr_last_error_string(const axrObject *object);
const char *axr_error_string(axrResult result);
size_t axr_list_devices(axrContext *context, axrDeviceInfo **devices);
axrProperties *axr_create_properties(axrContext *context, const char *initial);
void axr_set_property(axrProperties *properties, const char *key, const char *value);
const char *axr_get_property(axrProperties *properties, const char *key);
axrConnection *axr_device_connect(axrContext *context, axrDeviceInfo *device, size_t num_sub_devices, axrProperties *properties);
axrModel *axr_load_model(axrContext *context, const char *path);
axrProperties *axr_get_model_properties(axrModel *model);
size_t axr_num_model_inputs(axrModel *model);
size_t axr_num_model_outputs(axrModel *model);
axrTensorInfo axr_get_model_input(axrModel *model, size_t index);
axrTensorInfo axr_get_model_output(axrModel *model, size_t index);
size_t axr_tensor_size(const axrTensorInfo *info);
axrModelInstance *axr_load_model_instance(axrConnection *connection, axrModel *model, axrProperties *properties);
axrResult axr_run_model_instance(axrModelInstance *instance, axrArgument *inputs, size_t num_inputs, axrArgument *outputs,
				 size_t num_outputs);

#endif
