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
 * A stand-in for libnvbufsurftransform.so, written from the NvBufSurfTransform pages of the Jetson Linux API Reference (R35.3.1) alone. It
 * really crops, scales bilinearly (sample centres at half pixels) and converts NV12, limited or full range, BT.601 or BT.709, to RGBA; and
 * NV12 to NV12 of another size.
 *
 * "Block-linear" here: the rows of a plane are in reverse order. This is no real tiling, but a linear reader gets a wrong picture.
 *
 * TRANSFORM_DOUBLE in the environment makes it fail: no_vic, or the number of an error.
 */
#define _GNU_SOURCE
#include "nvbufsurface.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Values that a test reads.
int double_transforms;
int double_sessions;
int double_last_filter = -1;

static __thread bool session_is_vic;

typedef struct { uint8_t *bytes; size_t size; } memory;

static memory map(const NvBufSurface *surface)
{
	off_t size = lseek((int)surface->surfaceList[0].bufferDesc, 0, SEEK_END);
	void *bytes = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)surface->surfaceList[0].bufferDesc, 0);
	return (memory){ bytes == MAP_FAILED ? NULL : bytes, (size_t)size };
}

static uint8_t *row_of(const NvBufSurface *surface, memory from, int plane, int row)
{
	const NvBufSurfacePlaneParams *planes = &surface->surfaceList[0].planeParams;
	if (surface->surfaceList[0].layout == NVBUF_LAYOUT_BLOCK_LINEAR)
		row = (int)planes->height[plane] - 1 - row;
	return from.bytes + planes->offset[plane] + (size_t)row * planes->pitch[plane];
}

static int clamped(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

// Component c of plane at a real place within the rectangle, in the plane's own samples.
static double sample(const NvBufSurface *surface, memory from, int plane, int c, double y, double x, int top, int left, int bottom, int right)
{
	int step = (int)surface->surfaceList[0].planeParams.bytesPerPix[plane];
	int y0 = (int)(y + 1024) - 1024, x0 = (int)(x + 1024) - 1024;
	double dy = y - y0, dx = x - x0, sum = 0;
	for (int k = 0; k < 4; k++) {
		int row = clamped(y0 + k / 2, top, bottom - 1), column = clamped(x0 + k % 2, left, right - 1);
		sum += (k / 2 ? dy : 1 - dy) * (k % 2 ? dx : 1 - dx) * row_of(surface, from, plane, row)[column * step + c];
	}
	return sum;
}

static double place(int i, int size, int from_size, int from) { return (i + 0.5) * from_size / size - 0.5 + from; }

static uint8_t rounded(double value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5); }

static void to_rgba(NvBufSurfaceColorFormat format, double y, double u, double v, uint8_t *out)
{
	bool full = format == NVBUF_COLOR_FORMAT_NV12_ER || format == NVBUF_COLOR_FORMAT_NV12_709_ER;
	bool hd = format == NVBUF_COLOR_FORMAT_NV12_709 || format == NVBUF_COLOR_FORMAT_NV12_709_ER;
	double kr = hd ? 0.2126 : 0.299, kb = hd ? 0.0722 : 0.114, kg = 1 - kr - kb;
	y = full ? y : (y - 16) * 255 / 219;
	u = (u - 128) * (full ? 1 : 255.0 / 224);
	v = (v - 128) * (full ? 1 : 255.0 / 224);
	out[0] = rounded(y + 2 * (1 - kr) * v);
	out[1] = rounded(y - 2 * kb * (1 - kb) / kg * u - 2 * kr * (1 - kr) / kg * v);
	out[2] = rounded(y + 2 * (1 - kb) * u);
	out[3] = 255;
}

static bool is_nv12(const NvBufSurface *surface)
{
	NvBufSurfaceColorFormat format = surface->surfaceList[0].colorFormat;
	return surface->surfaceList[0].planeParams.num_planes == 2 && (format == NVBUF_COLOR_FORMAT_NV12 || format == NVBUF_COLOR_FORMAT_NV12_ER ||
	       format == NVBUF_COLOR_FORMAT_NV12_709 || format == NVBUF_COLOR_FORMAT_NV12_709_ER);
}

static bool outside(const NvBufSurfTransformRect *rect, const NvBufSurface *surface)
{
	return !rect->width || !rect->height || rect->left + rect->width > surface->surfaceList[0].width ||
	       rect->top + rect->height > surface->surfaceList[0].height;
}

NvBufSurfTransform_Error NvBufSurfTransformSetSessionParams(NvBufSurfTransformConfigParams *config)
{
	const char *mode = getenv("TRANSFORM_DOUBLE");
	if (config->compute_mode != NvBufSurfTransformCompute_VIC || (mode && !strcmp(mode, "no_vic")))
		return NvBufSurfTransformError_Unsupported;
	session_is_vic = true;
	double_sessions++;
	return NvBufSurfTransformError_Success;
}

NvBufSurfTransform_Error NvBufSurfTransform(NvBufSurface *source, NvBufSurface *target, NvBufSurfTransformParams *params)
{
	const char *mode = getenv("TRANSFORM_DOUBLE");
	if (mode && atoi(mode))
		return (NvBufSurfTransform_Error)atoi(mode);
	// Sessions belong to a thread, and a surface that is not filled holds no image.
	if (!session_is_vic || !source->numFilled || !target->numFilled || source == target || params->transform_flip)
		return NvBufSurfTransformError_Invalid_Params;
	NvBufSurfTransformRect from = { 0, 0, source->surfaceList[0].width, source->surfaceList[0].height };
	NvBufSurfTransformRect to = { 0, 0, target->surfaceList[0].width, target->surfaceList[0].height };
	if (params->transform_flag & NVBUFSURF_TRANSFORM_CROP_SRC)
		from = *params->src_rect;
	if (params->transform_flag & NVBUFSURF_TRANSFORM_CROP_DST)
		to = *params->dst_rect;
	if (outside(&from, source) || outside(&to, target))
		return NvBufSurfTransformError_ROI_Error;
	bool rgba = target->surfaceList[0].colorFormat == NVBUF_COLOR_FORMAT_RGBA;
	if (!is_nv12(source) || (!rgba && !is_nv12(target)))
		return NvBufSurfTransformError_Unsupported;
	double_last_filter = params->transform_flag & NVBUFSURF_TRANSFORM_FILTER ? (int)params->transform_filter : -1;
	memory in = map(source), out = map(target);
	if (!in.bytes || !out.bytes)
		return NvBufSurfTransformError_Execution_Error;
	int left = (int)from.left, top = (int)from.top, right = left + (int)from.width, bottom = top + (int)from.height;
	for (int i = 0; i < (int)to.height; i++)
		for (int j = 0; j < (int)to.width; j++) {
			double y = place(i, (int)to.height, (int)from.height, top), x = place(j, (int)to.width, (int)from.width, left);
			double luma = sample(source, in, 0, 0, y, x, top, left, bottom, right);
			double cy = (y - 0.5) / 2, cx = (x - 0.5) / 2, chroma[2];
			for (int c = 0; c < 2; c++)
				chroma[c] = sample(source, in, 1, c, cy, cx, top / 2, left / 2, bottom / 2, right / 2);
			int row = i + (int)to.top, column = j + (int)to.left;
			if (rgba) {
				to_rgba(source->surfaceList[0].colorFormat, luma, chroma[0], chroma[1], row_of(target, out, 0, row) + 4 * column);
				continue;
			}
			row_of(target, out, 0, row)[column] = rounded(luma);
			if (row % 2 == 0 && column % 2 == 0)
				for (int c = 0; c < 2; c++)
					row_of(target, out, 1, row / 2)[column + c] = rounded(sample(
						source, in, 1, c, place(i / 2, (int)to.height / 2, (int)from.height / 2, top / 2),
						place(j / 2, (int)to.width / 2, (int)from.width / 2, left / 2), top / 2, left / 2, bottom / 2, right / 2));
		}
	munmap(in.bytes, in.size);
	munmap(out.bytes, out.size);
	double_transforms++;
	return NvBufSurfTransformError_Success;
}
