/* SPDX-License-Identifier: GPL-2.0 */
/* How the exporters of this folder map their pages for a device. */
#ifndef EXPORTER_H
#define EXPORTER_H

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

/* The end of map_dma_buf(): @sgt has pages, or @ret is the error. On any error @sgt is freed. */
static inline struct sg_table *exporter_map(struct dma_buf_attachment *attach, struct sg_table *sgt,
					    enum dma_data_direction dir, int ret)
{
	if (!ret)
		ret = dma_map_sgtable(attach->dev, sgt, dir, 0);
	if (!ret)
		return sgt;
	sg_free_table(sgt);
	kfree(sgt);
	return ERR_PTR(ret);
}

static inline void exporter_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
				  enum dma_data_direction dir)
{
	dma_unmap_sgtable(attach->dev, sgt, dir, 0);
	sg_free_table(sgt);
	kfree(sgt);
}

#endif /* EXPORTER_H */
