/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What the virtual Metis has beyond axl_ioctl.h: the layout of its results, and
 * a test exporter of dma-bufs. Nothing here exists on real hardware.
 */
#ifndef AXL_VIRTUAL_H
#define AXL_VIRTUAL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define AXL_VIRTUAL_MAGIC	0x524c5841	/* "AXLR" in memory */
#define AXL_VIRTUAL_VERSION	1
#define AXL_VIRTUAL_PLANES	4
#define AXL_VIRTUAL_BLOCK	16	/* pixels, both ways */
#define AXL_VIRTUAL_THRESHOLD	32	/* grey levels off the mean of the frame */
#define AXL_VIRTUAL_MIN_BLOCKS	2	/* smaller blobs are noise */
#define AXL_VIRTUAL_MAX_BOXES	64
#define AXL_VIRTUAL_BRIGHT	0
#define AXL_VIRTUAL_DARK	1

/**
 * struct axl_virtual_result - what a job writes to the start of its result buffer
 * @magic: AXL_VIRTUAL_MAGIC
 * @version: AXL_VIRTUAL_VERSION
 * @seqno: seqno of the job
 * @width: of the image
 * @height: of the image
 * @fourcc: of the image
 * @num_planes: how many of @crc32 are used, the others are 0
 * @crc32: per plane, zlib's crc32() over the bytes of its rows, top to bottom,
 *	without the padding between them. A row has
 *	ceil(width / horizontal subsampling) * bytes per sample of that plane, and
 *	there are ceil(height / vertical subsampling) rows
 * @model_id: as submitted
 * @num_boxes: how many of @boxes are used, the others are 0
 * @boxes: x0, y0, x1, y1, score, class; corners in pixels of the image, the
 *	second one exclusive; score in 1/32767; class AXL_VIRTUAL_BRIGHT or _DARK
 *
 * The detector works in integers, every division rounds down:
 *
 * 1. Luma of a pixel: the Y sample where the format has one, the value of a grey
 *    one, (77 * R + 150 * G + 29 * B) >> 8 for RGB.
 * 2. The image is cut into blocks of 16x16 pixels from its upper left corner;
 *    what is left at the right and at the bottom takes no part. An image without
 *    a whole block has no boxes.
 * 3. S[b] is the sum over the 256 pixels of block b, mean[b] = S[b] / 256,
 *    M = (sum of all S) / (256 * number of blocks).
 * 4. A block is bright if mean[b] >= M + 32, dark if mean[b] + 32 <= M.
 * 5. A blob is a set of blocks of one class that touch along their edges
 *    (4-neighbours). Blobs are numbered by their first block, row by row from the
 *    top left. Those of fewer than 2 blocks are dropped, then the first 64 stay.
 * 6. A box is the smallest one around its blob. With m = (sum of S over the blob)
 *    / (256 * its number of blocks): score = |m - M| * 32767 / 255.
 *
 * A job that fails leaves the result buffer as it was.
 */
struct axl_virtual_result {
	__u32 magic;
	__u32 version;
	__u64 seqno;
	__u32 width;
	__u32 height;
	__u32 fourcc;
	__u32 num_planes;
	__u32 crc32[AXL_VIRTUAL_PLANES];
	__u32 model_id;
	__u32 num_boxes;
	__s16 boxes[AXL_VIRTUAL_MAX_BOXES][6];
};

/**
 * struct axl_shadow_alloc - a dma-buf whose CPU view is a copy
 *
 * Devices that attach see one set of pages, mmap() another. DMA_BUF_IOCTL_SYNC
 * copies between them: START from the device's to the CPU's, END after a WRITE
 * back. Without it a program sees, and a device gets, stale bytes: what happens
 * on a machine whose DMA is not coherent, and what x86 hides.
 */
struct axl_shadow_alloc {
	__u64 size;		/* in: rounded up to pages, at most 64 MiB */
	__u32 fd_flags;		/* in: O_CLOEXEC and the access mode */
	__s32 fd;		/* out */
};

/* on /dev/axl_shadow */
#define AXL_SHADOW_IOCTL_ALLOC	_IOWR('U', 96, struct axl_shadow_alloc)

/*
 * The two ioctls of the shipped driver (metis-dkms) that take a dma-buf, with the
 * module parameter "shipped": the argument points at an int, the file descriptor.
 */
#define AXL_SHIPPED_IOCTL_DMA_ATTACH	_IOWR('U', 5, int)
#define AXL_SHIPPED_IOCTL_DMA_DETACH	_IOWR('U', 6, int)

/**
 * struct axl_probe_crc - the CRC of rows of a dma-buf, seen past IOMMU and mmap()
 *
 * zlib's crc32() over @rows rows of @row_bytes bytes, @stride apart, from
 * @offset on, read through the exporter's vmap().
 */
struct axl_probe_crc {
	__s32 fd;		/* in */
	__u32 row_bytes;	/* in */
	__u32 stride;		/* in */
	__u32 rows;		/* in */
	__u64 offset;		/* in */
	__u32 crc;		/* out */
	__u32 pad;
};

/* on /dev/axl_probe */
#define AXL_PROBE_IOCTL_CRC	_IOWR('U', 97, struct axl_probe_crc)

#endif /* AXL_VIRTUAL_H */
