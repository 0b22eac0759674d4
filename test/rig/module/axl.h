/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of the virtual Metis share. */
#ifndef AXL_H
#define AXL_H

#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "axl_ioctl.h"
#include "axl_virtual.h"

#define AXL_MAX_SIDE	4096	/* pixels; keeps the coordinates of a box in 16 bits */

/* Counts of living objects, for the tests that look for leaks (debugfs metis/). */
struct axl_live {
	atomic_t attachments;
	atomic_t imports;
	atomic_t jobs;
	atomic_t fences;
};

extern struct axl_live axl_live;

struct axl_scratch;

/*
 * The PCI driver and each open file hold a reference: a card may be pulled while
 * its files are open. axl_remove() then ends their jobs and attachments.
 */
struct axl_device {
	struct kref ref;
	struct pci_dev *pdev;
	struct rw_semaphore alive;	/* held for reading by what uses the card */
	bool gone;			/* written under alive, which is then held by nobody else */
	struct mutex files_lock;	/* files, and the end of each of them */
	struct list_head files;
	struct miscdevice misc;
	char name[32];
	struct mutex engine;		/* one job reads pixels at a time; guards scratch */
	struct axl_scratch *scratch;
};

/* A dma-buf as the device sees it. */
struct axl_attachment {
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	enum dma_data_direction dir;
	dma_addr_t iova;		/* one range of dmabuf->size bytes */
};

/* An open file: handles and jobs are its own. */
struct axl_file {
	struct axl_device *axl;
	struct list_head node;		/* in axl->files */
	struct xarray imports;		/* handle to struct axl_import */
	u32 next_handle;
	struct workqueue_struct *queue;	/* ordered, unless out_of_order */
	bool out_of_order;		/* jobs run side by side, each on a timeline of its own */
	wait_queue_head_t wake;		/* where the queue's worker sleeps */
	bool closing;
	atomic_t queued;
	struct mutex submit_lock;	/* the order of seqnos is the order in the queue */
	u64 context;			/* of the fences */
	u64 seqno;
	struct axl_attachment shipped;	/* what the shipped driver's ioctl attached */
};

/* axl_format.c */

enum axl_luma { AXL_LUMA_Y, AXL_LUMA_YUYV, AXL_LUMA_RGB, AXL_LUMA_BGR };

struct axl_format_info {
	u32 fourcc;
	enum axl_luma luma;
	u8 num_planes;
	struct {
		u8 cpp;		/* bytes per sample */
		u8 hsub;
		u8 vsub;
	} planes[AXL_MAX_PLANES];
};

const struct axl_format_info *axl_format_find(u32 fourcc, u64 modifier);
u32 axl_format_row_bytes(const struct axl_format_info *info, u32 plane, u32 width);
u32 axl_format_rows(const struct axl_format_info *info, u32 plane, u32 height);
int axl_format_check_plane(const struct axl_format_info *info, u32 plane, u32 width,
			   u32 height, const struct axl_plane *layout, size_t room);
long axl_ioctl_query(void __user *up);

/* axl_import.c */

struct axl_image {
	const struct axl_format_info *info;
	u32 width;
	u32 height;
	u32 stride[AXL_MAX_PLANES];
	dma_addr_t iova[AXL_MAX_PLANES];	/* each plane's first byte */
};

struct axl_import {
	struct kref ref;	/* one by the handle, one by each job in flight */
	struct axl_device *axl;
	u32 handle;
	enum dma_data_direction dir;
	struct axl_image image;
	u32 num_attachments;
	struct axl_attachment attachments[AXL_MAX_PLANES];
};

int axl_attach(struct axl_device *axl, struct dma_buf *dmabuf,
	       enum dma_data_direction dir, struct axl_attachment *attachment);
void axl_detach(struct axl_attachment *attachment);

struct axl_import *axl_import_get(struct axl_file *file, u32 handle);
void axl_import_put(struct axl_import *import);
void axl_import_release_all(struct axl_file *file);

long axl_ioctl_import_fd(struct axl_file *file, void __user *up);
long axl_ioctl_import_planes(struct axl_file *file, void __user *up);
long axl_ioctl_release(struct axl_file *file, void __user *up);

/* axl_fence.c */

struct dma_fence *axl_fence_new(struct axl_file *file);
int axl_fence_reserve(struct dma_fence *fence, struct dma_buf *dmabuf, enum dma_resv_usage usage);

/* axl_job.c */

u32 axl_max_in_flight(void);
struct workqueue_struct *axl_queue_new(struct axl_file *file);
long axl_ioctl_submit(struct axl_file *file, void __user *up);
long axl_ioctl_submit2(struct axl_file *file, void __user *up);

/* axl_shipped.c */

bool axl_shipped_only(void);
void axl_shipped_end(struct axl_file *file);
long axl_ioctl_shipped(struct axl_file *file, unsigned int cmd, void __user *up);

/* axl_pixels.c */

struct axl_scratch *axl_scratch_alloc(void);
void axl_scratch_free(struct axl_scratch *scratch);
int axl_pixels_run(struct axl_device *axl, const struct axl_image *image,
		   const struct axl_attachment *result, u32 model_id, u64 seqno,
		   ktime_t deadline);

/* axl_main.c */

int axl_copy_sized(void *args, size_t size, void __user *up);

/* shadow_exporter.c */

int axl_shadow_init(void);
void axl_shadow_exit(void);

/* crc_probe.c */

int axl_crc_probe_init(void);
void axl_crc_probe_exit(void);

#endif /* AXL_H */
