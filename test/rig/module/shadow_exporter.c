// SPDX-License-Identifier: GPL-2.0
/*
 * An exporter of dma-bufs that have two sets of pages, one for devices and one
 * for the CPU, so that a missing DMA_BUF_IOCTL_SYNC is wrong bytes; see struct
 * axl_shadow_alloc.
 */
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "axl.h"
#include "exporter.h"

#define AXL_SHADOW_MAX_SIZE	(64UL << 20)

struct axl_shadow {
	unsigned int num_pages;
	struct mutex lock;		/* one copy at a time */
	struct page **device_pages;
	struct page **cpu_pages;
};

static struct page **axl_shadow_pages_alloc(unsigned int count)
{
	struct page **pages = kvcalloc(count, sizeof(*pages), GFP_KERNEL);

	if (!pages)
		return NULL;
	for (unsigned int i = 0; i < count; i++) {
		pages[i] = alloc_page(GFP_HIGHUSER | __GFP_ZERO);
		if (!pages[i]) {
			while (i--)
				__free_page(pages[i]);
			kvfree(pages);
			return NULL;
		}
	}
	return pages;
}

static void axl_shadow_pages_free(struct page **pages, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		__free_page(pages[i]);
	kvfree(pages);
}

static struct sg_table *axl_shadow_map(struct dma_buf_attachment *attach,
				       enum dma_data_direction dir)
{
	struct axl_shadow *shadow = attach->dmabuf->priv;
	struct sg_table *sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	int ret;

	if (!sgt)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table_from_pages(sgt, shadow->device_pages, shadow->num_pages, 0,
					attach->dmabuf->size, GFP_KERNEL);
	return exporter_map(attach, sgt, dir, ret);
}

static int axl_shadow_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	struct axl_shadow *shadow = dmabuf->priv;

	return vm_map_pages(vma, shadow->cpu_pages, shadow->num_pages);
}

/* Also before a write: what the CPU does not overwrite has to stay. */
static int axl_shadow_begin_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	struct axl_shadow *shadow = dmabuf->priv;

	mutex_lock(&shadow->lock);
	for (unsigned int i = 0; i < shadow->num_pages; i++)
		copy_highpage(shadow->cpu_pages[i], shadow->device_pages[i]);
	mutex_unlock(&shadow->lock);
	return 0;
}

static int axl_shadow_end_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	struct axl_shadow *shadow = dmabuf->priv;

	if (dir == DMA_FROM_DEVICE)	/* it was only read */
		return 0;
	mutex_lock(&shadow->lock);
	for (unsigned int i = 0; i < shadow->num_pages; i++)
		copy_highpage(shadow->device_pages[i], shadow->cpu_pages[i]);
	mutex_unlock(&shadow->lock);
	return 0;
}

static void axl_shadow_free(struct axl_shadow *shadow)
{
	axl_shadow_pages_free(shadow->cpu_pages, shadow->num_pages);
	axl_shadow_pages_free(shadow->device_pages, shadow->num_pages);
	kfree(shadow);
}

static void axl_shadow_release(struct dma_buf *dmabuf)
{
	axl_shadow_free(dmabuf->priv);
}

static const struct dma_buf_ops axl_shadow_dmabuf_ops = {
	.map_dma_buf = axl_shadow_map,
	.unmap_dma_buf = exporter_unmap,
	.mmap = axl_shadow_mmap,
	.begin_cpu_access = axl_shadow_begin_cpu_access,
	.end_cpu_access = axl_shadow_end_cpu_access,
	.release = axl_shadow_release,
};

static struct axl_shadow *axl_shadow_new(size_t size)
{
	struct axl_shadow *shadow = kzalloc(sizeof(*shadow), GFP_KERNEL);

	if (!shadow)
		return NULL;
	mutex_init(&shadow->lock);
	shadow->num_pages = size >> PAGE_SHIFT;
	shadow->device_pages = axl_shadow_pages_alloc(shadow->num_pages);
	if (!shadow->device_pages)
		goto err_free;
	shadow->cpu_pages = axl_shadow_pages_alloc(shadow->num_pages);
	if (!shadow->cpu_pages)
		goto err_pages;
	return shadow;

err_pages:
	axl_shadow_pages_free(shadow->device_pages, shadow->num_pages);
err_free:
	kfree(shadow);
	return NULL;
}

static long axl_shadow_alloc(void __user *up)
{
	struct axl_shadow_alloc args;
	struct axl_shadow *shadow;
	struct dma_buf *dmabuf;
	int fd;

	if (copy_from_user(&args, up, sizeof(args)))
		return -EFAULT;
	if (!args.size || args.size > AXL_SHADOW_MAX_SIZE)
		return -EINVAL;
	if (args.fd_flags & ~(O_CLOEXEC | O_ACCMODE))
		return -EINVAL;

	shadow = axl_shadow_new(PAGE_ALIGN(args.size));
	if (!shadow)
		return -ENOMEM;
	dmabuf = dma_buf_export(&(struct dma_buf_export_info){
		.exp_name = "axl_shadow",
		.owner = THIS_MODULE,
		.ops = &axl_shadow_dmabuf_ops,
		.size = PAGE_ALIGN(args.size),
		.flags = args.fd_flags & O_ACCMODE,
		.priv = shadow,
	});
	if (IS_ERR(dmabuf)) {
		axl_shadow_free(shadow);
		return PTR_ERR(dmabuf);
	}

	fd = get_unused_fd_flags(args.fd_flags & O_CLOEXEC);
	if (fd < 0) {
		dma_buf_put(dmabuf);
		return fd;
	}
	args.fd = fd;
	if (copy_to_user(up, &args, sizeof(args))) {
		put_unused_fd(fd);
		dma_buf_put(dmabuf);
		return -EFAULT;
	}
	fd_install(fd, dmabuf->file);
	return 0;
}

static long axl_shadow_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	return cmd == AXL_SHADOW_IOCTL_ALLOC ? axl_shadow_alloc((void __user *)arg) : -ENOTTY;
}

static const struct file_operations axl_shadow_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = axl_shadow_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice axl_shadow_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "axl_shadow",
	.fops = &axl_shadow_fops,
	.mode = 0666,
};

int axl_shadow_init(void)
{
	return misc_register(&axl_shadow_misc);
}

void axl_shadow_exit(void)
{
	misc_deregister(&axl_shadow_misc);
}
