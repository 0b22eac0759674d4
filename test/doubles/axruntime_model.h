/* SPDX-License-Identifier: Apache-2.0 */
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
