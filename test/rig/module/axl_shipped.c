// SPDX-License-Identifier: GPL-2.0
/*
 * What the driver that is shipped today can do with a dma-buf: attach one to an
 * open file and take it back. A program that uses it wrongly is told so in the
 * kernel log, where the shipped driver would leak or oops.
 */
#include <linux/module.h>
#include <linux/uaccess.h>

#include "axl.h"

static bool shipped;
module_param(shipped, bool, 0644);
MODULE_PARM_DESC(shipped, "answer attach and detach of the shipped driver, and none of axl_ioctl.h");

static int shipped_error;
module_param(shipped_error, int, 0644);
MODULE_PARM_DESC(shipped_error, "errno that attaching ends with (0: none)");

bool axl_shipped_only(void)
{
	return READ_ONCE(shipped);
}

static int axl_shipped_attach(struct axl_file *file, int fd)
{
	struct axl_attachment *held = &file->shipped;
	struct dma_buf_attachment *attach;
	struct dma_buf *dmabuf;
	struct sg_table *sgt;
	int ret = READ_ONCE(shipped_error);

	if (ret)
		return -ret;
	/* The shipped driver would forget the first one. */
	if (WARN_ON_ONCE(held->dmabuf))
		return -EBUSY;

	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	attach = dma_buf_attach(dmabuf, &file->axl->pdev->dev);
	if (IS_ERR(attach)) {
		ret = PTR_ERR(attach);
		goto err_put;
	}
	sgt = dma_buf_map_attachment_unlocked(attach, DMA_BIDIRECTIONAL);
	if (IS_ERR(sgt)) {
		ret = PTR_ERR(sgt);
		goto err_detach;
	}
	*held = (struct axl_attachment){
		.dmabuf = dmabuf,
		.attach = attach,
		.sgt = sgt,
		.dir = DMA_BIDIRECTIONAL,
		.iova = sg_dma_address(sgt->sgl),
	};
	atomic_inc(&axl_live.attachments);
	return 0;

err_detach:
	dma_buf_detach(dmabuf, attach);
err_put:
	dma_buf_put(dmabuf);
	return ret;
}

static int axl_shipped_detach(struct axl_file *file)
{
	/* The shipped driver would unmap a buffer that is not attached. */
	if (WARN_ON_ONCE(!file->shipped.dmabuf))
		return -EINVAL;
	axl_detach(&file->shipped);
	file->shipped = (struct axl_attachment){};
	return 0;
}

/* Detach the buffer that an open file still has when it is closed. */
void axl_shipped_end(struct axl_file *file)
{
	if (file->shipped.dmabuf)
		axl_shipped_detach(file);
}

long axl_ioctl_shipped(struct axl_file *file, unsigned int cmd, void __user *up)
{
	long ret;
	int fd;

	if (cmd != AXL_SHIPPED_IOCTL_DMA_ATTACH && cmd != AXL_SHIPPED_IOCTL_DMA_DETACH)
		return -ENOTTY;
	if (get_user(fd, (int __user *)up))
		return -EFAULT;

	mutex_lock(&file->submit_lock);
	ret = cmd == AXL_SHIPPED_IOCTL_DMA_ATTACH ? axl_shipped_attach(file, fd) :
						    axl_shipped_detach(file);
	mutex_unlock(&file->submit_lock);
	return ret;
}
