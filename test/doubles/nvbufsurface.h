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
 * NvBufSurface and NvBufSurfTransform, written from the field and enum tables of their pages in the Jetson Linux API Reference
 * (R35.3.1, R35.6) alone, not from the package that is tested with it: the structs have the documented fields in the documented order,
 * and their offsets are whatever the C compiler makes of that.
 *
 * -DNEWER_RELEASE: NvBufSurface and its parameters have grown, as in R39.2. Tests read this file: one declaration per line.
 * -DMOVED_LIST, -DMOVED_PLANES: a release that no documentation describes, with something new before what is known.
 */
#ifndef NVBUFSURFACE_DOUBLE_H
#define NVBUFSURFACE_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STRUCTURE_PADDING 4
#define NVBUF_MAX_PLANES 4

typedef enum {
	NVBUF_MEM_DEFAULT,
	NVBUF_MEM_CUDA_PINNED,
	NVBUF_MEM_CUDA_DEVICE,
	NVBUF_MEM_CUDA_UNIFIED,
	NVBUF_MEM_SURFACE_ARRAY,
} NvBufSurfaceMemType;

typedef enum {
	NVBUF_LAYOUT_PITCH,
	NVBUF_LAYOUT_BLOCK_LINEAR,
} NvBufSurfaceLayout;

typedef enum {
	NVBUF_COLOR_FORMAT_GRAY8 = 1,
	NVBUF_COLOR_FORMAT_NV12 = 6,
	NVBUF_COLOR_FORMAT_NV12_ER = 7,
	NVBUF_COLOR_FORMAT_RGBA = 19,
	NVBUF_COLOR_FORMAT_NV12_709 = 33,
	NVBUF_COLOR_FORMAT_NV12_709_ER = 34,
} NvBufSurfaceColorFormat;

typedef enum {
	NVBUF_DISPLAYSCANFORMAT_PROGRESSIVE,
	NVBUF_DISPLAYSCANFORMAT_INTERLACED,
} NvBufSurfaceDisplayScanFormat;

typedef enum {
	NVBUF_TAG_NONE = 0,
	NVBUF_TAG_CAMERA = 0x200,
	NVBUF_TAG_VIDEO_CONVERT = 0xf01,
} NvBufSurfaceTag;

typedef enum {
	NVBUF_MAP_READ,
	NVBUF_MAP_WRITE,
	NVBUF_MAP_READ_WRITE,
} NvBufSurfaceMemMapFlags;

typedef struct {
	uint8_t chromaLocHoriz;
	uint8_t chromaLocVert;
} NvBufSurfaceChromaSubsamplingParams;

typedef struct {
	uint32_t gpuId;
	uint32_t width;
	uint32_t height;
	uint32_t size;
	bool isContiguous;
	NvBufSurfaceColorFormat colorFormat;
	NvBufSurfaceLayout layout;
	NvBufSurfaceMemType memType;
} NvBufSurfaceCreateParams;

typedef struct {
	NvBufSurfaceCreateParams params;
	NvBufSurfaceDisplayScanFormat displayscanformat;
	NvBufSurfaceChromaSubsamplingParams chromaSubsampling;
	NvBufSurfaceTag memtag;
	bool disablePitchPadding;
	uint32_t _reservedParam;
	void *_reserved[STRUCTURE_PADDING - 1];
} NvBufSurfaceAllocateParams;

typedef struct {
	uint32_t num_planes;
	uint32_t width[NVBUF_MAX_PLANES];
	uint32_t height[NVBUF_MAX_PLANES];
	uint32_t pitch[NVBUF_MAX_PLANES];
	uint32_t offset[NVBUF_MAX_PLANES];
	uint32_t psize[NVBUF_MAX_PLANES];
	uint32_t bytesPerPix[NVBUF_MAX_PLANES];
	void *_reserved[STRUCTURE_PADDING * NVBUF_MAX_PLANES];
} NvBufSurfacePlaneParams;

typedef struct {
	void *addr[NVBUF_MAX_PLANES];
	void *eglImage;
	void *_reserved[STRUCTURE_PADDING];
} NvBufSurfaceMappedAddr;

typedef struct {
	uint32_t width;
	uint32_t height;
	uint32_t pitch;
	NvBufSurfaceColorFormat colorFormat;
	NvBufSurfaceLayout layout;
	uint64_t bufferDesc;
	uint32_t dataSize;
	void *dataPtr;
#ifdef MOVED_PLANES
	uint64_t unknown;
#endif
	NvBufSurfacePlaneParams planeParams;
	NvBufSurfaceMappedAddr mappedAddr;
	void *paramex;
#ifdef NEWER_RELEASE
	void *cudaBuffer;
	void *_reserved[STRUCTURE_PADDING];
#else
	void *_reserved[STRUCTURE_PADDING - 1];
#endif
} NvBufSurfaceParams;

typedef struct {
	uint32_t gpuId;
	uint32_t batchSize;
	uint32_t numFilled;
	bool isContiguous;
	NvBufSurfaceMemType memType;
#ifdef MOVED_LIST
	uint64_t unknown;
#endif
	NvBufSurfaceParams *surfaceList;
#ifdef NEWER_RELEASE
	bool isImportedBuf;
#endif
	void *_reserved[STRUCTURE_PADDING];
} NvBufSurface;

typedef struct {
	uint32_t width;
	uint32_t height;
	uint32_t pitch;
	uint32_t offset;
	uint32_t psize;
	uint32_t secondfieldoffset;
	uint32_t blockheightlog2;
	uint64_t flags;
	uint8_t reserved[64];
} NvBufSurfaceMapPlaneParams;

typedef struct {
	uint32_t num_planes;
	uint32_t gpuId;
	uint64_t fd;
	uint32_t totalSize;
	NvBufSurfaceMemType memType;
	NvBufSurfaceLayout layout;
	NvBufSurfaceDisplayScanFormat scanformat;
	NvBufSurfaceColorFormat colorFormat;
	NvBufSurfaceChromaSubsamplingParams chromaSubsampling;
	NvBufSurfaceMapPlaneParams planes[NVBUF_MAX_PLANES];
	uint8_t reserved[64];
} NvBufSurfaceMapParams;

typedef enum {
	NvBufSurfTransformCompute_Default,
	NvBufSurfTransformCompute_GPU,
	NvBufSurfTransformCompute_VIC,
} NvBufSurfTransform_Compute;

typedef enum {
	NvBufSurfTransform_None,
	NvBufSurfTransform_Rotate90,
} NvBufSurfTransform_Flip;

typedef enum {
	NvBufSurfTransformInter_Nearest,
	NvBufSurfTransformInter_Bilinear,
} NvBufSurfTransform_Inter;

typedef enum {
	NvBufSurfTransformError_ROI_Error = -4,
	NvBufSurfTransformError_Invalid_Params = -3,
	NvBufSurfTransformError_Execution_Error = -2,
	NvBufSurfTransformError_Unsupported = -1,
	NvBufSurfTransformError_Success = 0,
} NvBufSurfTransform_Error;

typedef enum {
	NVBUFSURF_TRANSFORM_CROP_SRC = 1,
	NVBUFSURF_TRANSFORM_CROP_DST = 1 << 1,
	NVBUFSURF_TRANSFORM_FILTER = 1 << 2,
	NVBUFSURF_TRANSFORM_FLIP = 1 << 3,
} NvBufSurfTransform_Transform_Flag;

typedef struct CUstream_st *cudaStream_t;

typedef struct {
	uint32_t top;
	uint32_t left;
	uint32_t width;
	uint32_t height;
} NvBufSurfTransformRect;

typedef struct {
	NvBufSurfTransform_Compute compute_mode;
	int32_t gpu_id;
	cudaStream_t cuda_stream;
} NvBufSurfTransformConfigParams;

typedef struct {
	uint32_t transform_flag;
	NvBufSurfTransform_Flip transform_flip;
	NvBufSurfTransform_Inter transform_filter;
	NvBufSurfTransformRect *src_rect;
	NvBufSurfTransformRect *dst_rect;
} NvBufSurfTransformParams;

#endif
