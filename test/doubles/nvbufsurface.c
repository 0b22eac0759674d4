// SPDX-License-Identifier: Apache-2.0
/*
 * A stand-in for libnvbufsurface.so. Written from the field and enum tables of the NvBufSurface pages in the Jetson Linux API
 * Reference (R35.3.1) alone, not from the package that is tested with it: the structs have the documented fields in the documented
 * order, and their offsets are whatever the C compiler makes of that.
 *
 * What it does as documented: one surface for each batch element, pitch-linear planes with a padded pitch, bufferDesc a descriptor
 * that the surface owns, numFilled left for the caller. Where the machine has a dma-heap the memory is a dma-buf, otherwise a sealed
 * memfd.
 *
 * -DWITHOUT_ALLOCATE: an older release. -DNEWER_RELEASE: NvBufSurface and its parameters have grown, as in R39.2.
 * NVBUF_DOUBLE in the environment makes it misbehave: refuse, block_linear, other_format, small (memory below dataSize), outside (a plane behind it),
 * no_fd (a bufferDesc that is not open), batch.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define STRUCTURE_PADDING 4
#define NVBUF_MAX_PLANES 4

typedef enum { NVBUF_MEM_DEFAULT, NVBUF_MEM_CUDA_PINNED, NVBUF_MEM_CUDA_DEVICE, NVBUF_MEM_CUDA_UNIFIED, NVBUF_MEM_SURFACE_ARRAY } NvBufSurfaceMemType;
typedef enum { NVBUF_LAYOUT_PITCH, NVBUF_LAYOUT_BLOCK_LINEAR } NvBufSurfaceLayout;
typedef enum {
	NVBUF_COLOR_FORMAT_GRAY8 = 1,
	NVBUF_COLOR_FORMAT_NV12 = 6,
	NVBUF_COLOR_FORMAT_NV12_ER = 7,
	NVBUF_COLOR_FORMAT_RGBA = 19,
	NVBUF_COLOR_FORMAT_NV12_709 = 33,
} NvBufSurfaceColorFormat;
typedef enum { NVBUF_DISPLAYSCANFORMAT_PROGRESSIVE, NVBUF_DISPLAYSCANFORMAT_INTERLACED } NvBufSurfaceDisplayScanFormat;
typedef enum { NVBUF_TAG_NONE = 0, NVBUF_TAG_CAMERA = 0x200 } NvBufSurfaceTag;

typedef struct { uint8_t chromaLocHoriz, chromaLocVert; } NvBufSurfaceChromaSubsamplingParams;

typedef struct {
	uint32_t gpuId, width, height, size;
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
	uint32_t width[NVBUF_MAX_PLANES], height[NVBUF_MAX_PLANES], pitch[NVBUF_MAX_PLANES];
	uint32_t offset[NVBUF_MAX_PLANES], psize[NVBUF_MAX_PLANES], bytesPerPix[NVBUF_MAX_PLANES];
	void *_reserved[STRUCTURE_PADDING * NVBUF_MAX_PLANES];
} NvBufSurfacePlaneParams;

typedef struct {
	void *addr[NVBUF_MAX_PLANES];
	void *eglImage;
	void *_reserved[STRUCTURE_PADDING];
} NvBufSurfaceMappedAddr;

typedef struct {
	uint32_t width, height, pitch;
	NvBufSurfaceColorFormat colorFormat;
	NvBufSurfaceLayout layout;
	uint64_t bufferDesc;
	uint32_t dataSize;
	void *dataPtr;
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
	uint32_t gpuId, batchSize, numFilled;
	bool isContiguous;
	NvBufSurfaceMemType memType;
	NvBufSurfaceParams *surfaceList;
#ifdef NEWER_RELEASE
	bool isImportedBuf;
#endif
	void *_reserved[STRUCTURE_PADDING];
} NvBufSurface;

// What a test may ask the double itself.
int double_live_surfaces;
int double_last_tag = -1;
int double_last_format = -1;
int double_filled_at_destroy;
int double_lost_descriptors;

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
			   wanted->colorFormat == NVBUF_COLOR_FORMAT_NV12_709;
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

int NvBufSurfaceDestroy(NvBufSurface *surface)
{
	double_filled_at_destroy = (int)surface->numFilled;
	// Batches of one are all that can be made here. Whoever closed the surface's descriptor had no right to.
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
	double_live_surfaces++;
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
