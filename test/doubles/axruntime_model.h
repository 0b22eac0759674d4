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
/* What the runtime's double computes: see axruntime_model.c. */
#ifndef AXRUNTIME_MODEL_H
#define AXRUNTIME_MODEL_H

#include "axruntime.h"

#include <stdbool.h>
#include <stdint.h>

#define MAX_OUTPUTS 6

struct model {
	int num_inputs, num_outputs, height, width, classes;
	axrTensorInfo input, outputs[MAX_OUTPUTS];
};

bool read_model(struct model *model, const char *path);
size_t tensor_size(const axrTensorInfo *info);
void compute(const struct model *model, const int8_t *input, int8_t *outputs[]);

#endif
