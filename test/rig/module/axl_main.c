// SPDX-License-Identifier: GPL-2.0
/*
 * A virtual Metis: the driver side of axl_ioctl.h on a PCI function that is
 * nothing but a DMA identity behind an IOMMU. For tests only.
 */
#include <linux/debugfs.h>
#include <linux/dma-fence.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "axl.h"

#define CREATE_TRACE_POINTS
#include "axl_trace.h"

#define AXL_PCI_VENDOR	0x1b36	/* QEMU's pci-testdev */
#define AXL_PCI_DEVICE	0x0005

static uint abi_level = 2;
module_param(abi_level, uint, 0644);
MODULE_PARM_DESC(abi_level, "ioctls of axl_ioctl.h: 0 none (a shipped driver), 1 64-66, 2 all");

static bool untranslated;
module_param(untranslated, bool, 0644);
MODULE_PARM_DESC(untranslated, "also take a card whose addresses the IOMMU passes through, as if there were none");

struct axl_live axl_live;
static struct dentry *axl_debugfs;

/* Copy in an argument that begins with its size and may be longer than what we know. */
int axl_copy_sized(void *args, size_t size, void __user *up)
{
	u32 user_size;

	if (get_user(user_size, (u32 __user *)up))
		return -EFAULT;
	if (user_size < size)
		return -EINVAL;
	if (user_size > PAGE_SIZE)
		return -E2BIG;
	return copy_struct_from_user(args, size, up, user_size);
}

/* By number: the size within the number grows with the argument. */
static long axl_ioctl_sized(struct axl_file *file, unsigned int nr, void __user *up)
{
	switch (nr) {
	case _IOC_NR(AXL_IOCTL_IMPORT_PLANES):
		return axl_ioctl_import_planes(file, up);
	case _IOC_NR(AXL_IOCTL_SUBMIT2):
		return axl_ioctl_submit2(file, up);
	case _IOC_NR(AXL_IOCTL_QUERY):
		return axl_ioctl_query(up);
	}
	return -ENOTTY;
}

static long axl_ioctl_by_level(struct axl_file *file, unsigned int cmd, void __user *up)
{
	unsigned int level = READ_ONCE(abi_level);

	if (axl_shipped_only())
		return axl_ioctl_shipped(file, cmd, up);
	if (level < 1 || _IOC_TYPE(cmd) != AXL_IOCTL_TYPE)
		return -ENOTTY;
	switch (cmd) {
	case AXL_IOCTL_IMPORT_FD:
		return axl_ioctl_import_fd(file, up);
	case AXL_IOCTL_SUBMIT:
		return axl_ioctl_submit(file, up);
	case AXL_IOCTL_RELEASE_IMPORT:
		return axl_ioctl_release(file, up);
	}
	if (level < 2 || _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE))
		return -ENOTTY;
	return axl_ioctl_sized(file, _IOC_NR(cmd), up);
}

/* The card stays while an ioctl uses it. */
static long axl_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct axl_file *file = filp->private_data;
	struct axl_device *axl = file->axl;
	long ret = -ENODEV;

	down_read(&axl->alive);
	if (!axl->gone)
		ret = axl_ioctl_by_level(file, cmd, (void __user *)arg);
	up_read(&axl->alive);
	return ret;
}

static void axl_device_free(struct kref *ref)
{
	struct axl_device *axl = container_of(ref, struct axl_device, ref);

	axl_scratch_free(axl->scratch);
	kfree(axl);
}

/* Nothing of the card can be opened any more once misc_deregister() has returned. */
static int axl_open(struct inode *inode, struct file *filp)
{
	struct axl_device *axl = container_of(filp->private_data, struct axl_device, misc);
	struct axl_file *file = kzalloc(sizeof(*file), GFP_KERNEL);

	if (!file)
		return -ENOMEM;
	file->queue = axl_queue_new(file);
	if (!file->queue) {
		kfree(file);
		return -ENOMEM;
	}
	file->axl = axl;
	file->context = dma_fence_context_alloc(1);
	xa_init_flags(&file->imports, XA_FLAGS_ALLOC1);
	init_waitqueue_head(&file->wake);
	mutex_init(&file->submit_lock);
	filp->private_data = file;

	kref_get(&axl->ref);
	mutex_lock(&axl->files_lock);
	list_add_tail(&file->node, &axl->files);
	mutex_unlock(&axl->files_lock);
	return 0;
}

/*
 * Cancel the jobs in flight, in their order, and detach all buffers. The caller
 * holds files_lock and has set closing or gone, which sets the error of the fences.
 */
static void axl_file_end(struct axl_file *file)
{
	lockdep_assert_held(&file->axl->files_lock);
	wake_up_all(&file->wake);
	drain_workqueue(file->queue);
	axl_import_release_all(file);
	axl_shipped_end(file);
}

static int axl_release(struct inode *inode, struct file *filp)
{
	struct axl_file *file = filp->private_data;
	struct axl_device *axl = file->axl;

	WRITE_ONCE(file->closing, true);
	mutex_lock(&axl->files_lock);
	list_del(&file->node);
	axl_file_end(file);
	mutex_unlock(&axl->files_lock);
	destroy_workqueue(file->queue);
	kfree(file);
	kref_put(&axl->ref, axl_device_free);
	return 0;
}

static const struct file_operations axl_fops = {
	.owner = THIS_MODULE,
	.open = axl_open,
	.release = axl_release,
	.unlocked_ioctl = axl_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static int axl_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(&pdev->dev);
	struct axl_device *axl;
	int ret;

	if (!domain || (!iommu_is_dma_domain(domain) && !READ_ONCE(untranslated))) {
		dev_err(&pdev->dev, "no IOMMU translates for this device; boot with intel_iommu=on\n");
		return -ENODEV;
	}

	axl = kzalloc(sizeof(*axl), GFP_KERNEL);
	if (!axl)
		return -ENOMEM;
	kref_init(&axl->ref);
	init_rwsem(&axl->alive);
	mutex_init(&axl->files_lock);
	INIT_LIST_HEAD(&axl->files);
	axl->pdev = pdev;
	mutex_init(&axl->engine);
	axl->scratch = axl_scratch_alloc();
	if (!axl->scratch) {
		ret = -ENOMEM;
		goto err_free;
	}

	ret = pci_enable_device(pdev);
	if (ret)
		goto err_scratch;
	pci_set_master(pdev);
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		goto err_disable;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);

	/* The shipped driver's name: domain, bus and slot. */
	snprintf(axl->name, sizeof(axl->name), "metis-%x:%x:%x", pci_domain_nr(pdev->bus),
		 pdev->bus->number, PCI_SLOT(pdev->devfn));
	axl->misc.minor = MISC_DYNAMIC_MINOR;
	axl->misc.name = axl->name;
	axl->misc.fops = &axl_fops;
	axl->misc.parent = &pdev->dev;
	axl->misc.mode = 0666;
	ret = misc_register(&axl->misc);
	if (ret)
		goto err_disable;
	pci_set_drvdata(pdev, axl);
	dev_info(&pdev->dev, "/dev/%s: virtual Metis for tests\n", axl->name);
	return 0;

err_disable:
	pci_disable_device(pdev);
err_scratch:
	axl_scratch_free(axl->scratch);
err_free:
	kfree(axl);
	return ret;
}

/*
 * At module exit, and when the card is pulled, reset or unbound while files are
 * open: these get ENODEV from now on, and so do the fences of their jobs.
 */
static void axl_remove(struct pci_dev *pdev)
{
	struct axl_device *axl = pci_get_drvdata(pdev);
	struct axl_file *file;

	misc_deregister(&axl->misc);

	down_write(&axl->alive);
	WRITE_ONCE(axl->gone, true);
	up_write(&axl->alive);

	/* Attachments must not outlive the device that they are mapped for. */
	mutex_lock(&axl->files_lock);
	list_for_each_entry(file, &axl->files, node)
		axl_file_end(file);
	mutex_unlock(&axl->files_lock);

	pci_disable_device(pdev);
	kref_put(&axl->ref, axl_device_free);
}

static const struct pci_device_id axl_ids[] = {
	{ PCI_DEVICE(AXL_PCI_VENDOR, AXL_PCI_DEVICE) },
	{ }
};
MODULE_DEVICE_TABLE(pci, axl_ids);

static struct pci_driver axl_driver = {
	.name = "metis",
	.id_table = axl_ids,
	.probe = axl_probe,
	.remove = axl_remove,
};

static int __init axl_init(void)
{
	int ret;

	ret = axl_shadow_init();
	if (ret)
		return ret;
	ret = axl_crc_probe_init();
	if (ret)
		goto err_shadow;
	ret = pci_register_driver(&axl_driver);
	if (ret)
		goto err_probe;
	axl_debugfs = debugfs_create_dir("metis", NULL);
	debugfs_create_atomic_t("attachments", 0444, axl_debugfs, &axl_live.attachments);
	debugfs_create_atomic_t("imports", 0444, axl_debugfs, &axl_live.imports);
	debugfs_create_atomic_t("jobs", 0444, axl_debugfs, &axl_live.jobs);
	debugfs_create_atomic_t("fences", 0444, axl_debugfs, &axl_live.fences);
	return 0;

err_probe:
	axl_crc_probe_exit();
err_shadow:
	axl_shadow_exit();
	return ret;
}

static void __exit axl_exit(void)
{
	debugfs_remove(axl_debugfs);
	pci_unregister_driver(&axl_driver);
	axl_crc_probe_exit();
	axl_shadow_exit();
	/* For axl_fence_reclaim(), which gave up its hold on this module in an RCU callback. */
	rcu_barrier();
}

module_init(axl_init);
module_exit(axl_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Virtual Axelera Metis for tests");
MODULE_IMPORT_NS(DMA_BUF);
