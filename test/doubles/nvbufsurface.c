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
 * A stand-in for libnvbufsurface.so. Written from the NvBufSurface pages in the Jetson Linux API Reference (R35.3.1) alone, not from the
 * package that is tested with it; its structs are in nvbufsurface.h.
 *
 * What it does as documented: one surface for each batch element, pitch-linear planes with a padded pitch, bufferDesc a descriptor
 * that the surface owns, numFilled left for the caller. Where the machine has a dma-heap the memory is a dma-buf, otherwise a sealed
 * memfd. What NvBufSurfaceMap gives is another copy of the plane, as a cache would be: NvBufSurfaceSyncForCpu makes it current.
 *
 * -DWITHOUT_ALLOCATE: an older release. -DNEWER_RELEASE: NvBufSurface and its parameters have grown, as in R39.2.
 * -DWITHOUT_IMPORT: a release that has no NvBufSurfaceImport.
 * NVBUF_DOUBLE in the environment makes it misbehave: refuse, block_linear, other_format, small (memory below dataSize), outside (a plane
 * behind it), no_fd (a bufferDesc that is not open), batch, no_map, stranger (knows no descriptor), stale (knows them all as the first
 * surface that it made).
 */
#define _GNU_SOURCE
#include "nvbufsurface.h"

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Counters and values that a test reads.
int double_live_surfaces;
int double_last_tag = -1;
int double_last_format = -1;
int double_filled_at_destroy;
int double_lost_descriptors;
int double_mapped_planes;
int double_imports;

// All surfaces that live.
static NvBufSurface *live[64];

static bool mode(const char *name)
{
	const char *value = getenv("NVBUF_DOUBLE");
	return value && !strcmp(value, name);
}

static int new_memory(size_t size)
{
	struct dma_heap_allocation_data request = { .len = size, .fd_flags = O_RDWR | O_CLOEXEC };
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	if (heap >= 0) {
		int status = ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &request);
		close(heap);
		if (status == 0)
			return (int)request.fd;
	}
	int fd = memfd_create("nvmap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
		close(fd);
		return -1;
	}
	return fd;
}

static uint32_t align(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

static int fill(NvBufSurfaceParams *surface, const NvBufSurfaceCreateParams *wanted)
{
	NvBufSurfacePlaneParams *planes = &surface->planeParams;
	bool semi_planar = wanted->colorFormat == NVBUF_COLOR_FORMAT_NV12 || wanted->colorFormat == NVBUF_COLOR_FORMAT_NV12_ER ||
			   wanted->colorFormat == NVBUF_COLOR_FORMAT_NV12_709 || wanted->colorFormat == NVBUF_COLOR_FORMAT_NV12_709_ER;
	uint32_t end = 0;

	if (!semi_planar && wanted->colorFormat != NVBUF_COLOR_FORMAT_RGBA && wanted->colorFormat != NVBUF_COLOR_FORMAT_GRAY8)
		return -1;
	planes->num_planes = semi_planar ? 2 : 1;
	for (uint32_t i = 0; i < planes->num_planes; i++) {
		planes->bytesPerPix[i] = semi_planar ? 1 + i : wanted->colorFormat == NVBUF_COLOR_FORMAT_RGBA ? 4 : 1;
		planes->width[i] = wanted->width >> i;
		planes->height[i] = wanted->height >> i;
		planes->pitch[i] = align(planes->width[i] * planes->bytesPerPix[i], 256);
		planes->offset[i] = end;
		planes->psize[i] = align(planes->pitch[i] * planes->height[i], 0x10000);
		end += planes->psize[i];
	}
	surface->width = wanted->width;
	surface->height = wanted->height;
	surface->pitch = planes->pitch[0];
	surface->colorFormat = mode("other_format") ? NVBUF_COLOR_FORMAT_GRAY8 : wanted->colorFormat;
	surface->layout = mode("block_linear") ? NVBUF_LAYOUT_BLOCK_LINEAR : wanted->layout;
	surface->dataSize = end;
	if (mode("outside"))
		planes->offset[planes->num_planes - 1] = end;
	int fd = new_memory(mode("small") ? 4096 : end);
	if (fd < 0)
		return -1;
	if (mode("no_fd")) {
		close(fd);
		fd = 1 << 20;
	}
	surface->bufferDesc = (uint64_t)fd;
	return 0;
}

static void enlist(NvBufSurface *surface)
{
	size_t place = 0;
	while (place < sizeof(live) / sizeof(*live) - 1 && live[place])
		place++;
	live[place] = surface;
	double_live_surfaces++;
}

int NvBufSurfaceDestroy(NvBufSurface *surface)
{
	for (size_t i = 0; i < sizeof(live) / sizeof(*live); i++)
		if (live[i] == surface)
			live[i] = NULL;
	double_filled_at_destroy = (int)surface->numFilled;
	// Only batches of one can be made here. Nobody else may have closed the surface's descriptor.
	if (close((int)surface->surfaceList[0].bufferDesc))
		double_lost_descriptors++;
	free(surface->surfaceList);
	free(surface);
	double_live_surfaces--;
	return 0;
}

int NvBufSurfaceCreate(NvBufSurface **surface, uint32_t batch, NvBufSurfaceCreateParams *wanted)
{
	double_last_format = wanted->colorFormat;
	if (mode("refuse") || batch != 1 || wanted->gpuId || wanted->memType != NVBUF_MEM_SURFACE_ARRAY || !wanted->width || !wanted->height)
		return -1;
	NvBufSurface *made = calloc(1, sizeof(*made));
	made->surfaceList = calloc(batch, sizeof(*made->surfaceList));
	made->batchSize = batch;
	made->memType = wanted->memType;
	if (fill(&made->surfaceList[0], wanted)) {
		free(made->surfaceList);
		free(made);
		return -1;
	}
	enlist(made);
	if (mode("batch"))
		made->batchSize = 0;
	*surface = made;
	return 0;
}

#ifndef WITHOUT_ALLOCATE
int NvBufSurfaceAllocate(NvBufSurface **surface, uint32_t batch, NvBufSurfaceAllocateParams *wanted)
{
	double_last_tag = (int)wanted->memtag;
	return NvBufSurfaceCreate(surface, batch, &wanted->params);
}
#endif

int NvBufSurfaceMap(NvBufSurface *surface, int index, int plane, NvBufSurfaceMemMapFlags type)
{
	NvBufSurfaceParams *image = &surface->surfaceList[index];
	if (mode("no_map") || index != 0 || plane < 0 || plane >= (int)image->planeParams.num_planes || type > NVBUF_MAP_READ_WRITE)
		return -1;
	// Garbage at first: only a synchronisation copies the pixels.
	image->mappedAddr.addr[plane] = malloc(image->planeParams.psize[plane]);
	memset(image->mappedAddr.addr[plane], 0xee, image->planeParams.psize[plane]);
	double_mapped_planes++;
	return 0;
}

int NvBufSurfaceUnMap(NvBufSurface *surface, int index, int plane)
{
	NvBufSurfaceParams *image = &surface->surfaceList[index];
	if (index != 0 || plane < 0 || !image->mappedAddr.addr[plane])
		return -1;
	free(image->mappedAddr.addr[plane]);
	image->mappedAddr.addr[plane] = NULL;
	double_mapped_planes--;
	return 0;
}

int NvBufSurfaceSyncForCpu(NvBufSurface *surface, int index, int plane)
{
	NvBufSurfaceParams *image = &surface->surfaceList[index];
	if (index != 0 || plane < 0 || !image->mappedAddr.addr[plane])
		return -1;
	size_t end = image->planeParams.offset[plane] + image->planeParams.psize[plane];
	char *memory = mmap(NULL, end, PROT_READ, MAP_SHARED, (int)image->bufferDesc, 0);
	if (memory == MAP_FAILED)
		return -1;
	memcpy(image->mappedAddr.addr[plane], memory + image->planeParams.offset[plane], image->planeParams.psize[plane]);
	munmap(memory, end);
	return 0;
}

int NvBufSurfaceFromFd(int fd, void **buffer)
{
	struct stat wanted, own;
	if (mode("stranger") || fstat(fd, &wanted))
		return -1;
	for (size_t i = 0; i < sizeof(live) / sizeof(*live); i++)
		if (live[i] && (mode("stale") || (!fstat((int)live[i]->surfaceList[0].bufferDesc, &own) && own.st_ino == wanted.st_ino &&
						  own.st_dev == wanted.st_dev))) {
			*buffer = live[i];
			return 0;
		}
	return -1;
}

#ifndef WITHOUT_IMPORT
int NvBufSurfaceImport(NvBufSurface **surface, const NvBufSurfaceMapParams *params)
{
	struct stat status;
	if (mode("refuse_import") || params->memType != NVBUF_MEM_SURFACE_ARRAY || params->num_planes > NVBUF_MAX_PLANES ||
	    fstat((int)params->fd, &status) || lseek((int)params->fd, 0, SEEK_END) < (off_t)params->totalSize)
		return -1;
	NvBufSurface *made = calloc(1, sizeof(*made));
	made->surfaceList = calloc(1, sizeof(*made->surfaceList));
	made->batchSize = made->numFilled = 1;
	made->memType = params->memType;
	NvBufSurfaceParams *image = &made->surfaceList[0];
	image->width = params->planes[0].width;
	image->height = params->planes[0].height;
	image->pitch = params->planes[0].pitch;
	image->colorFormat = params->colorFormat;
	image->layout = params->layout;
	image->dataSize = params->totalSize;
	image->bufferDesc = (uint64_t)fcntl((int)params->fd, F_DUPFD_CLOEXEC, 3);
	image->planeParams.num_planes = params->num_planes;
	for (uint32_t i = 0; i < params->num_planes; i++) {
		image->planeParams.width[i] = params->planes[i].width;
		image->planeParams.height[i] = params->planes[i].height;
		image->planeParams.pitch[i] = params->planes[i].pitch;
		image->planeParams.offset[i] = params->planes[i].offset;
		image->planeParams.psize[i] = params->planes[i].psize;
		image->planeParams.bytesPerPix[i] = params->num_planes == 2 ? 1 + i : image->colorFormat == NVBUF_COLOR_FORMAT_RGBA ? 4 : 1;
	}
	double_imports++;
	enlist(made);
	*surface = made;
	return 0;
}
#endif
