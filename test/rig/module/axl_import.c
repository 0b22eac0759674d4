// SPDX-License-Identifier: GPL-2.0
/* Importing dma-bufs: from file descriptors to device addresses, and back. */
#include <drm/drm_fourcc.h>
#include <linux/dma-mapping.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "axl.h"
#include "axl_trace.h"

/* The device addresses an image by a base and offsets: its memory has to be one range. */
static bool axl_is_one_range(struct sg_table *sgt, size_t size)
{
	dma_addr_t next = sg_dma_address(sgt->sgl);
	struct scatterlist *sg;
	size_t length = 0;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i) {
		if (sg_dma_address(sg) != next)
			return false;
		next += sg_dma_len(sg);
		length += sg_dma_len(sg);
	}
	return length >= size;
}

/* On success the attachment owns the caller's reference of @dmabuf. */
int axl_attach(struct axl_device *axl, struct dma_buf *dmabuf,
	       enum dma_data_direction dir, struct axl_attachment *attachment)
{
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	int ret;

	if (dir != DMA_TO_DEVICE && !(dmabuf->file->f_mode & FMODE_WRITE))
		return -EACCES;

	attach = dma_buf_attach(dmabuf, &axl->pdev->dev);
	if (IS_ERR(attach))
		return PTR_ERR(attach);

	sgt = dma_buf_map_attachment_unlocked(attach, dir);
	if (IS_ERR(sgt)) {
		ret = PTR_ERR(sgt);
		goto err_detach;
	}
	if (!axl_is_one_range(sgt, dmabuf->size)) {
		ret = -EOPNOTSUPP;
		goto err_unmap;
	}

	*attachment = (struct axl_attachment){
		.dmabuf = dmabuf,
		.attach = attach,
		.sgt = sgt,
		.dir = dir,
		.iova = sg_dma_address(sgt->sgl),
	};
	atomic_inc(&axl_live.attachments);
	return 0;

err_unmap:
	dma_buf_unmap_attachment_unlocked(attach, sgt, dir);
err_detach:
	dma_buf_detach(dmabuf, attach);
	return ret;
}

void axl_detach(struct axl_attachment *attachment)
{
	dma_buf_unmap_attachment_unlocked(attachment->attach, attachment->sgt, attachment->dir);
	dma_buf_detach(attachment->dmabuf, attachment->attach);
	dma_buf_put(attachment->dmabuf);
	atomic_dec(&axl_live.attachments);
}

static void axl_import_free(struct axl_import *import)
{
	for (u32 i = 0; i < import->num_attachments; i++)
		axl_detach(&import->attachments[i]);
	kfree(import);
}

static void axl_import_last_put(struct kref *ref)
{
	struct axl_import *import = container_of(ref, struct axl_import, ref);

	for (u32 i = 0; i < import->num_attachments; i++)
		trace_axl_dmabuf_release(import->handle, import->attachments[i].dmabuf);
	axl_import_free(import);
	atomic_dec(&axl_live.imports);
}

void axl_import_put(struct axl_import *import)
{
	kref_put(&import->ref, axl_import_last_put);
}

struct axl_import *axl_import_get(struct axl_file *file, u32 handle)
{
	struct axl_import *import;

	xa_lock(&file->imports);
	import = xa_load(&file->imports, handle);
	if (import)
		kref_get(&import->ref);
	xa_unlock(&file->imports);
	return import;
}

/* Only called when nobody else can use the file. */
void axl_import_release_all(struct axl_file *file)
{
	struct axl_import *import;
	unsigned long handle;

	xa_for_each(&file->imports, handle, import)
		axl_import_put(import);
	xa_destroy(&file->imports);
}

static int axl_direction(u32 flags, enum dma_data_direction *dir)
{
	switch (flags) {
	case AXL_IMPORT_TO_DEVICE:
		*dir = DMA_TO_DEVICE;
		return 0;
	case AXL_IMPORT_FROM_DEVICE:
		*dir = DMA_FROM_DEVICE;
		return 0;
	case AXL_IMPORT_BIDIRECTIONAL:
		*dir = DMA_BIDIRECTIONAL;
		return 0;
	}
	return -EINVAL;
}

static struct axl_import *axl_import_new(struct axl_file *file, u32 flags, u32 fourcc,
					 u64 modifier, u32 width, u32 height)
{
	const struct axl_format_info *info = axl_format_find(fourcc, modifier);
	enum dma_data_direction dir;
	struct axl_import *import;

	if (axl_direction(flags, &dir) || !info)
		return ERR_PTR(-EINVAL);
	if (!width || !height || width > AXL_MAX_SIDE || height > AXL_MAX_SIDE)
		return ERR_PTR(-EINVAL);

	import = kzalloc(sizeof(*import), GFP_KERNEL);
	if (!import)
		return ERR_PTR(-ENOMEM);
	kref_init(&import->ref);
	import->axl = file->axl;
	import->dir = dir;
	import->image.info = info;
	import->image.width = width;
	import->image.height = height;
	return import;
}

/* Check a plane and find or make the attachment of its dma-buf. */
static int axl_import_add_plane(struct axl_import *import, u32 plane,
				const struct axl_plane *layout)
{
	struct axl_image *image = &import->image;
	struct axl_attachment *attachment = NULL;
	struct dma_buf *dmabuf;
	int ret;

	dmabuf = dma_buf_get(layout->fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	ret = axl_format_check_plane(image->info, plane, image->width, image->height,
				     layout, dmabuf->size);
	if (ret)
		goto err_put;

	for (u32 i = 0; i < import->num_attachments; i++)
		if (import->attachments[i].dmabuf == dmabuf)
			attachment = &import->attachments[i];
	if (attachment) {
		/* One reference by the attachment is enough for all its planes. */
		dma_buf_put(dmabuf);
	} else {
		attachment = &import->attachments[import->num_attachments];
		ret = axl_attach(import->axl, dmabuf, import->dir, attachment);
		if (ret)
			goto err_put;
		import->num_attachments++;
	}

	image->stride[plane] = layout->stride;
	image->iova[plane] = attachment->iova + layout->offset;
	return 0;

err_put:
	dma_buf_put(dmabuf);
	return ret;
}

/*
 * The handle is reserved before and filled after user space has been told, so
 * that no other thread can release an import by guessing its handle while this
 * one may still fail.
 */
static int axl_import_reserve(struct axl_file *file, struct axl_import *import)
{
	int ret = xa_alloc_cyclic(&file->imports, &import->handle, NULL,
				  XA_LIMIT(1, INT_MAX), &file->next_handle, GFP_KERNEL);

	return ret < 0 ? ret : 0;
}

static void axl_import_publish(struct axl_file *file, struct axl_import *import)
{
	atomic_inc(&axl_live.imports);
	for (u32 i = 0; i < import->num_attachments; i++) {
		struct axl_attachment *attachment = &import->attachments[i];

		trace_axl_dmabuf_import(import->handle, attachment->dmabuf,
					attachment->iova, attachment->dmabuf->size);
	}
	/* Cannot fail: the reservation holds the memory for the entry. */
	xa_store(&file->imports, import->handle, import, GFP_KERNEL);
}

/* Where @plane lies in a tightly packed image that starts with the buffer. */
static void axl_tight_plane(const struct axl_image *image, u32 plane, struct axl_plane *layout)
{
	layout->offset += layout->size;
	layout->stride = axl_format_row_bytes(image->info, plane, image->width);
	layout->size = (u64)axl_format_rows(image->info, plane, image->height) * layout->stride;
}

long axl_ioctl_import_fd(struct axl_file *file, void __user *up)
{
	struct axl_plane layout = {};
	struct axl_import_fd args;
	struct axl_import *import;
	int ret;

	if (copy_from_user(&args, up, sizeof(args)))
		return -EFAULT;

	import = axl_import_new(file, args.flags, args.pixfmt, DRM_FORMAT_MOD_LINEAR,
				args.width, args.height);
	if (IS_ERR(import))
		return PTR_ERR(import);

	layout.fd = args.fd;
	for (u32 i = 0; i < import->image.info->num_planes; i++) {
		axl_tight_plane(&import->image, i, &layout);
		ret = axl_import_add_plane(import, i, &layout);
		if (ret)
			goto err_free;
	}

	ret = axl_import_reserve(file, import);
	if (ret)
		goto err_free;
	args.handle = import->handle;
	args.iova_base = import->attachments[0].iova;
	args.size = import->attachments[0].dmabuf->size;
	if (copy_to_user(up, &args, sizeof(args))) {
		ret = -EFAULT;
		goto err_release;
	}
	axl_import_publish(file, import);
	return 0;

err_release:
	xa_release(&file->imports, import->handle);
err_free:
	axl_import_free(import);
	return ret;
}

long axl_ioctl_import_planes(struct axl_file *file, void __user *up)
{
	struct axl_import_planes args;
	struct axl_import *import;
	int ret;

	ret = axl_copy_sized(&args, sizeof(args), up);
	if (ret)
		return ret;
	if (args.pad)
		return -EINVAL;

	import = axl_import_new(file, args.flags, args.fourcc, args.modifier,
				args.width, args.height);
	if (IS_ERR(import))
		return PTR_ERR(import);
	if (args.num_planes != import->image.info->num_planes) {
		ret = -EINVAL;
		goto err_free;
	}

	memset(args.iova_base, 0, sizeof(args.iova_base));
	for (u32 i = 0; i < args.num_planes; i++) {
		ret = axl_import_add_plane(import, i, &args.planes[i]);
		if (ret)
			goto err_free;
		args.iova_base[i] = import->image.iova[i];
	}

	ret = axl_import_reserve(file, import);
	if (ret)
		goto err_free;
	args.handle = import->handle;
	if (copy_to_user(up, &args, sizeof(args))) {
		ret = -EFAULT;
		goto err_release;
	}
	axl_import_publish(file, import);
	return 0;

err_release:
	xa_release(&file->imports, import->handle);
err_free:
	axl_import_free(import);
	return ret;
}

long axl_ioctl_release(struct axl_file *file, void __user *up)
{
	struct axl_import *import;
	u32 handle;

	if (get_user(handle, (u32 __user *)up))
		return -EFAULT;

	/* Not xa_erase(): that would also free the reservation of an import under way. */
	xa_lock(&file->imports);
	import = xa_load(&file->imports, handle);
	if (import)
		__xa_erase(&file->imports, handle);
	xa_unlock(&file->imports);
	if (!import)
		return -ENOENT;

	axl_import_put(import);
	return 0;
}
