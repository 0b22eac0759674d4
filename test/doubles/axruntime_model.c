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
 * The detector in the runtime's double: a real computation on the bytes of a quantised, padded int8 NHWC tensor, which yields what a
 * YOLOv8 compiled for Metis does: for each of the strides 8, 16 and 32 a quantised DFL tensor (4 x 16 bins) and a quantised tensor of
 * class logits whose channels are padded to 64.
 *
 * Class c is "red", "green" or "blue". A cell's logit grows with the mean of how much that colour exceeds the others in it; its box
 * reaches from its centre to where the colour at the centre ends, to the left, top, right and bottom.
 *
 * The sizes and quantisation stand in the model file, as "key": number.
 */
#include "axruntime_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BINS 16
#define LOGIT_GAIN 8.0
#define LOWEST_LOGIT -8.0

static const int STRIDES[] = { 8, 16, 32 };

static double setting(const char *text, const char *key, double missing)
{
	char quoted[64];
	snprintf(quoted, sizeof(quoted), "\"%s\"", key);
	const char *found = strstr(text, quoted);
	found = found ? strchr(found + strlen(quoted), ':') : NULL;
	return found ? strtod(found + 1, NULL) : missing;
}

static axrTensorInfo tensor(const char *name, int stride, size_t height, size_t width, size_t channels, double scale, int zero_point)
{
	axrTensorInfo info = { .dims = { 1, height, width, channels }, .ndims = 4, .bits = 8, .type = AXR_SIGNED,
			       .scale = scale, .zero_point = zero_point };
	snprintf(info.name, sizeof(info.name), stride ? "%s_%d" : "%s", name, stride);
	return info;
}

bool read_model(struct model *model, const char *path)
{
	static char text[1 << 16];
	FILE *file = fopen(path, "r");
	if (!file)
		return false;
	text[fread(text, 1, sizeof(text) - 1, file)] = 0;
	fclose(file);
	memset(model, 0, sizeof(*model));
	model->height = (int)setting(text, "height", 0);
	model->width = (int)setting(text, "width", 0);
	model->classes = (int)setting(text, "classes", 3);
	if (model->height <= 0 || model->width <= 0 || model->height % 32 || model->width % 32)
		return false;
	model->num_inputs = (int)setting(text, "num_inputs", 1);
	model->input = tensor("images", 0, (size_t)model->height + 2, (size_t)model->width + 16, 4, setting(text, "input_scale", 1 / 255.0),
			      (int)setting(text, "input_zero_point", -128));
	model->input.dims[0] = (size_t)setting(text, "batch", 1);
	model->input.padding[1][0] = model->input.padding[1][1] = model->input.padding[2][0] = model->input.padding[3][1] = 1;
	model->input.padding[2][1] = 15;
	for (int level = 0; level < 3; level++) {
		size_t rows = (size_t)(model->height / STRIDES[level]), columns = (size_t)(model->width / STRIDES[level]);
		axrTensorInfo *box = &model->outputs[model->num_outputs++], *scores = &model->outputs[model->num_outputs++];
		// A column more than there are cells, so that rows aren't adjacent without the padding.
		*box = tensor("box", STRIDES[level], rows, columns + 1, 4 * BINS, 1 / 16.0, 100);
		box->padding[2][1] = 1;
		*scores = tensor("scores", STRIDES[level], rows, columns, 64, 1 / 12.0, -20 + level);
		scores->padding[3][1] = (size_t)(64 - model->classes);
	}
	return true;
}

size_t tensor_size(const axrTensorInfo *info)
{
	size_t size = info->bits / 8;
	for (size_t i = 0; i < info->ndims; i++)
		size *= info->dims[i];
	return size;
}

static int8_t quantised(double value, const axrTensorInfo *info)
{
	double raw = floor(value / info->scale + info->zero_point + 0.5);
	return (int8_t)(raw < -128 ? -128 : raw > 127 ? 127 : raw);
}

// How much colour c exceeds the other two at a pixel, from -1 to 1.
static double excess(const struct model *model, const int8_t *input, int y, int x, int c)
{
	const axrTensorInfo *info = &model->input;
	const int8_t *pixel = input + (((size_t)y + info->padding[1][0]) * info->dims[2] + (size_t)x + info->padding[2][0]) * info->dims[3];
	double first = (pixel[(c + 1) % 3] - info->zero_point) * info->scale, second = (pixel[(c + 2) % 3] - info->zero_point) * info->scale;
	return (pixel[c] - info->zero_point) * info->scale - (first > second ? first : second);
}

static int reach(const struct model *model, const int8_t *input, int y, int x, int c, int dy, int dx, int limit)
{
	int steps = 0;
	while (steps < limit && y >= 0 && x >= 0 && y < model->height && x < model->width && excess(model, input, y, x, c) > 0.5) {
		y += dy;
		x += dx;
		steps++;
	}
	return steps;
}

static void write_distance(int8_t *bins, double distance, const axrTensorInfo *info)
{
	int lower = (int)distance;
	double upper_part = distance - lower;
	for (int bin = 0; bin < BINS; bin++) {
		double part = bin == lower ? 1 - upper_part : bin == lower + 1 ? upper_part : 0;
		bins[bin] = quantised(part > 0 && log(part) > LOWEST_LOGIT ? log(part) : LOWEST_LOGIT, info);
	}
}

static void compute_cell(const struct model *model, const int8_t *input, int level, int row, int column, int8_t *box, int8_t *scores)
{
	int stride = STRIDES[level], centre_y = row * stride + stride / 2, centre_x = column * stride + stride / 2, best = 0;
	for (int c = 0; c < model->classes; c++) {
		double sum = 0;
		for (int y = 0; y < stride; y++)
			for (int x = 0; x < stride; x++)
				sum += excess(model, input, row * stride + y, column * stride + x, c);
		scores[c] = quantised(LOGIT_GAIN * (2 * sum / (stride * stride) - 1), &model->outputs[2 * level + 1]);
		if (excess(model, input, centre_y, centre_x, c) > excess(model, input, centre_y, centre_x, best))
			best = c;
	}
	int limit = (BINS - 1) * stride;
	int steps[4] = {
		reach(model, input, centre_y, centre_x - 1, best, 0, -1, limit),
		reach(model, input, centre_y - 1, centre_x, best, -1, 0, limit),
		reach(model, input, centre_y, centre_x, best, 0, 1, limit),
		reach(model, input, centre_y, centre_x, best, 1, 0, limit),
	};
	for (int side = 0; side < 4; side++)
		write_distance(box + side * BINS, (double)steps[side] / stride, &model->outputs[2 * level]);
}

void compute(const struct model *model, const int8_t *input, int8_t *outputs[])
{
	for (int level = 0; level < 3; level++) {
		const axrTensorInfo *box = &model->outputs[2 * level], *scores = &model->outputs[2 * level + 1];
		// The padding has no meaning: a device may leave anything there.
		memset(outputs[2 * level], 0x7f, tensor_size(box));
		memset(outputs[2 * level + 1], 0x7f, tensor_size(scores));
		for (int row = 0; row < model->height / STRIDES[level]; row++)
			for (int column = 0; column < model->width / STRIDES[level]; column++)
				compute_cell(model, input, level, row, column,
					     outputs[2 * level] + ((size_t)row * box->dims[2] + (size_t)column) * box->dims[3],
					     outputs[2 * level + 1] + ((size_t)row * scores->dims[2] + (size_t)column) * scores->dims[3]);
	}
}
