// SPDX-License-Identifier: GPL-2.0
/*
 * A dma-heap of physically contiguous memory, for a kernel without CONFIG_CMA.
 *
 * The framework is the kernel's own: /dev/dma_heap/NAME, its ioctl and its class.
 * Only where the pages come from differs from drivers/dma-buf/heaps/cma_heap.c:
 * here it is the page allocator, which gives up to 4 MiB in one piece.
 * A heap can't be taken back, so neither can this module.
 */
#include <linux/dma-heap.h>
#include <linux/gfp.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>

#include "exporter.h"

static char *name = "linux,cma";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "the heap's name in /dev/dma_heap");

static struct sg_table *contiguous_map(struct dma_buf_attachment *attach,
				       enum dma_data_direction dir)
{
	struct sg_table *sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	int ret;

	if (!sgt)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table(sgt, 1, GFP_KERNEL);
	if (!ret)
		sg_set_page(sgt->sgl, virt_to_page(attach->dmabuf->priv), attach->dmabuf->size, 0);
	return exporter_map(attach, sgt, dir, ret);
}

static int contiguous_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	unsigned long pfn = PHYS_PFN(virt_to_phys(dmabuf->priv)) + vma->vm_pgoff;

	return remap_pfn_range(vma, vma->vm_start, pfn, vma->vm_end - vma->vm_start,
			       vma->vm_page_prot);
}

static int contiguous_vmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	iosys_map_set_vaddr(map, dmabuf->priv);
	return 0;
}

static void contiguous_release(struct dma_buf *dmabuf)
{
	free_pages_exact(dmabuf->priv, dmabuf->size);
}

static const struct dma_buf_ops contiguous_dmabuf_ops = {
	.map_dma_buf = contiguous_map,
	.unmap_dma_buf = exporter_unmap,
	.mmap = contiguous_mmap,
	.vmap = contiguous_vmap,
	.release = contiguous_release,
};

static struct dma_buf *contiguous_allocate(struct dma_heap *heap, unsigned long len,
					   u32 fd_flags, u64 heap_flags)
{
	void *pages = alloc_pages_exact(PAGE_ALIGN(len), GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
	struct dma_buf *dmabuf;

	if (!pages)
		return ERR_PTR(-ENOMEM);
	dmabuf = dma_buf_export(&(struct dma_buf_export_info){
		.exp_name = name,
		.owner = THIS_MODULE,
		.ops = &contiguous_dmabuf_ops,
		.size = PAGE_ALIGN(len),
		.flags = fd_flags,
		.priv = pages,
	});
	if (IS_ERR(dmabuf))
		free_pages_exact(pages, PAGE_ALIGN(len));
	return dmabuf;
}

static const struct dma_heap_ops contiguous_ops = {
	.allocate = contiguous_allocate,
};

static int __init contiguous_init(void)
{
	/* dma_heap_add() is there, but not for modules: a probe tells where. */
	struct kprobe probe = { .symbol_name = "dma_heap_add" };
	typeof(dma_heap_add) *add;
	struct dma_heap *heap;
	int ret = register_kprobe(&probe);

	if (ret)
		return ret;
	add = (void *)probe.addr;
	unregister_kprobe(&probe);
	heap = add(&(struct dma_heap_export_info){ .name = name, .ops = &contiguous_ops });
	return PTR_ERR_OR_ZERO(heap);
}

/* Without an exit function it stays. */
module_init(contiguous_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A dma-heap of contiguous memory for tests");
MODULE_IMPORT_NS(DMA_BUF);
