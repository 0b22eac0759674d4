/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Importing dma-bufs into an Axelera Metis accelerator, and running jobs on them.
 *
 * This header is the contract between user space and a driver; it has nothing
 * of the virtual device in it, so that a driver author can take it as it is.
 *
 * Rules that hold for all of it:
 *
 *  - Little-endian, natural alignment, 64-bit kernel: no implicit padding, so
 *    there is no compat layer.
 *  - Type 'U'; 0-32 and 50 belong to the shipped driver.
 *  - Handles belong to the open file that made them; close() releases them.
 *  - Formats are DRM fourccs with a DRM format modifier, sizes are those of the
 *    image, padding lives in strides, offsets and sizes alone.
 *  - Members marked "out" are ignored on input; "pad" and unknown flags must be
 *    zero or the call fails with EINVAL.
 *  - Arguments that begin with struct_size may grow at their end. A driver
 *    takes any struct_size from the size in this header up to a page, fails
 *    with E2BIG if bytes that it does not know are not zero, with EINVAL if the
 *    argument is shorter than here, and writes back only what it knows. It
 *    looks at the number of these ioctls, not at the size within the number.
 *  - A driver without these ioctls answers ENOTTY, one with the first
 *    generation alone (64-66) answers ENOTTY to the others.
 */
#ifndef AXL_IOCTL_H
#define AXL_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Direction of the DMA, exactly one of them. Frames are imported TO_DEVICE. */
#define AXL_IMPORT_TO_DEVICE		(1 << 0)
#define AXL_IMPORT_FROM_DEVICE		(1 << 1)
#define AXL_IMPORT_BIDIRECTIONAL	(1 << 2)

#define AXL_MAX_PLANES			4

/**
 * struct axl_import_fd - import one dma-buf that holds a whole image
 *
 * Implies DRM_FORMAT_MOD_LINEAR, tight strides, planes one after the other from
 * the start of the buffer. Anything else needs AXL_IOCTL_IMPORT_PLANES.
 *
 * Errors: EBADF fd is not open; EINVAL fd is not a dma-buf, is too small for
 * the image, or a format, size or flag is not supported; EACCES the fd is
 * read-only and the direction is not TO_DEVICE; EOPNOTSUPP the buffer cannot
 * be mapped as one range of device addresses.
 */
struct axl_import_fd {
	__s32 fd;		/* in */
	__u32 width;		/* in */
	__u32 height;		/* in */
	__u32 pixfmt;		/* in: DRM fourcc */
	__u32 flags;		/* in: AXL_IMPORT_* */
	__u32 handle;		/* out: never 0 */
	__u64 iova_base;	/* out: device address of the buffer's first byte */
	__u64 size;		/* out: size of the dma-buf in bytes */
};

/**
 * struct axl_submit - run a model on an imported image
 *
 * @timeout_us counts from this call and includes the time in the queue. After
 * it the device does not touch the buffers of this job any more and the fence
 * has signalled, with -ETIMEDOUT if there is no result. 0 asks for the driver's
 * default.
 *
 * @completion_us is 0: the end cannot be known here. The time comes from the
 * fence (SYNC_IOC_FILE_INFO, CLOCK_MONOTONIC). An error fence polls readable
 * too, so the status has to be read.
 *
 * Errors: ENOENT no such handle in this open file; EBADF, EINVAL, EACCES
 * result_fd is not open, is no dma-buf or too small, is read-only; EINVAL the
 * image was imported FROM_DEVICE; EOPNOTSUPP the result cannot be mapped as
 * one range of device addresses; EBUSY max_in_flight jobs are already queued,
 * wait for a fence and try again; EMFILE, ENFILE no descriptor for the fence;
 * ENOMEM; ENODEV the device is gone.
 */
struct axl_submit {
	__u32 input_handle;	/* in */
	__s32 result_fd;	/* in: dma-buf that the result is written to */
	__u32 model_id;		/* in */
	__u32 timeout_us;	/* in */
	__s32 fence_fd;		/* out: a sync_file, close-on-exec */
	__u32 pad;
	__u64 submit_us;	/* out: CLOCK_MONOTONIC */
	__u64 completion_us;	/* out: 0 */
};

/**
 * struct axl_plane - where one plane of an image lies
 *
 * EINVAL if @stride is below the bytes of a row, if @size does not hold
 * (rows - 1) * stride + bytes of a row, if @offset + @size leaves the buffer,
 * or if @stride or @offset are not multiples of what AXL_IOCTL_QUERY said.
 */
struct axl_plane {
	__s32 fd;		/* planes may share a dma-buf or have one each */
	__u32 stride;
	__u64 offset;
	__u64 size;
};

/**
 * struct axl_import_planes - import an image with an explicit layout
 *
 * @num_planes must be what the format has; planes[] beyond it are ignored.
 * A format and modifier that AXL_IOCTL_QUERY does not list is EINVAL. Other
 * errors as for struct axl_import_fd.
 */
struct axl_import_planes {
	__u32 struct_size;	/* in */
	__u32 flags;		/* in: AXL_IMPORT_* */
	__u32 width;		/* in */
	__u32 height;		/* in */
	__u32 fourcc;		/* in */
	__u32 num_planes;	/* in */
	__u64 modifier;		/* in */
	struct axl_plane planes[AXL_MAX_PLANES];	/* in */
	__u32 handle;		/* out: never 0 */
	__u32 pad;
	__u64 iova_base[AXL_MAX_PLANES];	/* out: each plane's first byte */
};

/**
 * struct axl_submit2 - struct axl_submit with an acquire fence
 *
 * The device does not read the image before @in_fence_fd has signalled; the
 * wait counts towards @timeout_us. If that fence carries an error, the job ends
 * with the same error and the image is not read. The call takes its own
 * reference: the fd stays the caller's. EBADF it is not open, EINVAL it is no
 * sync_file. No flags are defined.
 */
struct axl_submit2 {
	__u32 struct_size;	/* in */
	__u32 flags;		/* in: 0 */
	__u32 input_handle;	/* in */
	__u32 model_id;		/* in */
	__u32 timeout_us;	/* in */
	__s32 in_fence_fd;	/* in: a sync_file, or -1 */
	__s32 result_fd;	/* in */
	__s32 fence_fd;		/* out */
	__u64 submit_us;	/* out */
	__u64 seqno;		/* out: counts the jobs of this open file from 1 */
};

/* One pair that can be imported. */
struct axl_format {
	__u32 fourcc;
	__u32 pad;
	__u64 modifier;
};

/**
 * struct axl_query - what the device can do
 *
 * @num_formats in: room at @formats_ptr, out: how many there are. At most the
 * room is written; 0 asks for the number alone.
 */
struct axl_query {
	__u32 struct_size;	/* in */
	__u32 abi_version;	/* out: AXL_ABI_VERSION */
	__u32 max_in_flight;	/* out: jobs that may be queued at a time */
	__u32 stride_align;	/* out: bytes, a power of two */
	__u32 offset_align;	/* out: bytes, a power of two */
	__u32 num_formats;	/* in, out */
	__u64 formats_ptr;	/* in: struct axl_format[] */
};

#define AXL_ABI_VERSION			2

#define AXL_IOCTL_TYPE			'U'

#define AXL_IOCTL_IMPORT_FD		_IOWR(AXL_IOCTL_TYPE, 64, struct axl_import_fd)
#define AXL_IOCTL_SUBMIT		_IOWR(AXL_IOCTL_TYPE, 65, struct axl_submit)
/* The argument points at the handle; ENOENT if this open file has no such. */
#define AXL_IOCTL_RELEASE_IMPORT	_IOW(AXL_IOCTL_TYPE, 66, __u32)
#define AXL_IOCTL_IMPORT_PLANES		_IOWR(AXL_IOCTL_TYPE, 67, struct axl_import_planes)
#define AXL_IOCTL_SUBMIT2		_IOWR(AXL_IOCTL_TYPE, 68, struct axl_submit2)
#define AXL_IOCTL_QUERY			_IOWR(AXL_IOCTL_TYPE, 69, struct axl_query)

#endif /* AXL_IOCTL_H */
