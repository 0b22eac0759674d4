// SPDX-License-Identifier: GPL-2.0
/*
 * What a dma-buf holds, as the exporter's own kernel mapping shows it: a second
 * way to the pixels, past the IOMMU and past every mapping of user space, so
 * that a test can check what the device saw while no process maps the frame.
 */
#include <linux/crc32.h>
#include <linux/dma-buf.h>
#include <linux/iosys-map.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "axl.h"
#include "axl_virtual.h"

static int axl_probe_rows(struct dma_buf *dmabuf, struct axl_probe_crc *args)
{
	struct iosys_map map;
	u32 crc = ~0, row;
	int ret;

	ret = dma_buf_vmap_unlocked(dmabuf, &map);
	if (ret)
		return ret;
	if (map.is_iomem) {
		ret = -EOPNOTSUPP;
		goto out;
	}
	for (row = 0; row < args->rows; row++) {
		crc = crc32_le(crc, map.vaddr + args->offset + (u64)row * args->stride,
			       args->row_bytes);
		cond_resched();
	}
	args->crc = ~crc;
out:
	dma_buf_vunmap_unlocked(dmabuf, &map);
	return ret;
}

static long axl_probe_crc(void __user *up)
{
	struct axl_probe_crc args;
	struct dma_buf *dmabuf;
	u64 end;
	int ret;

	if (copy_from_user(&args, up, sizeof(args)))
		return -EFAULT;
	if (args.pad || !args.rows || !args.row_bytes || args.row_bytes > args.stride)
		return -EINVAL;
	dmabuf = dma_buf_get(args.fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	ret = -EINVAL;
	end = (u64)(args.rows - 1) * args.stride + args.row_bytes;
	if (end > dmabuf->size || args.offset > dmabuf->size - end)
		goto out;
	ret = dma_buf_begin_cpu_access(dmabuf, DMA_FROM_DEVICE);
	if (ret)
		goto out;
	ret = axl_probe_rows(dmabuf, &args);
	dma_buf_end_cpu_access(dmabuf, DMA_FROM_DEVICE);
	if (!ret && copy_to_user(up, &args, sizeof(args)))
		ret = -EFAULT;
out:
	dma_buf_put(dmabuf);
	return ret;
}

static long axl_probe_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	return cmd == AXL_PROBE_IOCTL_CRC ? axl_probe_crc((void __user *)arg) : -ENOTTY;
}

static const struct file_operations axl_probe_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = axl_probe_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice axl_probe_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "axl_probe",
	.fops = &axl_probe_fops,
	.mode = 0666,
};

int axl_crc_probe_init(void)
{
	return misc_register(&axl_probe_misc);
}

void axl_crc_probe_exit(void)
{
	misc_deregister(&axl_probe_misc);
}
