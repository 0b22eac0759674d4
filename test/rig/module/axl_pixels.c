// SPDX-License-Identifier: GPL-2.0
/*
 * The engine: it reads pixels the way a device does, by device addresses that
 * the IOMMU translates page by page, and writes its result the same way. A wrong
 * offset, a wrong stride or a stale cache is a wrong answer here. The result and
 * the detector are specified in axl_virtual.h.
 */
#include <linux/crc32.h>
#include <linux/highmem.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "axl.h"

#define AXL_MAX_CELLS	((AXL_MAX_SIDE / AXL_VIRTUAL_BLOCK) * (AXL_MAX_SIDE / AXL_VIRTUAL_BLOCK))
#define AXL_MAX_ROW	(AXL_MAX_SIDE * 3)
#define AXL_CELL_PIXELS	(AXL_VIRTUAL_BLOCK * AXL_VIRTUAL_BLOCK)
#define AXL_NO_CLASS	0xff

struct axl_scratch {
	u8 row[AXL_MAX_ROW];
	u32 sum[AXL_MAX_CELLS];		/* of the luma of a block */
	u8 class[AXL_MAX_CELLS];
	u32 stack[AXL_MAX_CELLS];
	u32 columns;
	u32 rows;
	u32 mean;			/* of the whole image */
	struct axl_virtual_result result;
};

struct axl_blob {
	u32 left, top, right, bottom;	/* in blocks, all inclusive */
	u32 blocks;
	u64 sum;
	u8 class;
};

struct axl_scratch *axl_scratch_alloc(void)
{
	return kvzalloc(sizeof(struct axl_scratch), GFP_KERNEL);
}

void axl_scratch_free(struct axl_scratch *scratch)
{
	kvfree(scratch);
}

static int axl_dma(struct axl_device *axl, dma_addr_t iova, void *buffer, size_t length, bool write)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(&axl->pdev->dev);

	while (length) {
		size_t part = min_t(size_t, length, PAGE_SIZE - offset_in_page(iova));
		phys_addr_t phys = iommu_iova_to_phys(domain, iova);
		struct page *page;

		if (!phys || !pfn_valid(PHYS_PFN(phys)))
			return -EFAULT;
		page = pfn_to_page(PHYS_PFN(phys));
		if (write)
			memcpy_to_page(page, offset_in_page(phys), buffer, part);
		else
			memcpy_from_page(buffer, page, offset_in_page(phys), part);
		iova += part;
		buffer += part;
		length -= part;
	}
	return 0;
}

static u32 axl_luma_at(enum axl_luma luma, const u8 *row, u32 x)
{
	switch (luma) {
	case AXL_LUMA_Y:
		return row[x];
	case AXL_LUMA_YUYV:
		return row[2 * x];
	case AXL_LUMA_RGB:
		return (77 * row[3 * x] + 150 * row[3 * x + 1] + 29 * row[3 * x + 2]) >> 8;
	case AXL_LUMA_BGR:
		return (77 * row[3 * x + 2] + 150 * row[3 * x + 1] + 29 * row[3 * x]) >> 8;
	}
	return 0;
}

static void axl_sum_row(struct axl_scratch *scratch, enum axl_luma luma, u32 y)
{
	u32 *sum = &scratch->sum[y / AXL_VIRTUAL_BLOCK * scratch->columns];

	if (y / AXL_VIRTUAL_BLOCK >= scratch->rows)
		return;
	for (u32 column = 0; column < scratch->columns; column++)
		for (u32 x = 0; x < AXL_VIRTUAL_BLOCK; x++)
			sum[column] += axl_luma_at(luma, scratch->row,
						   column * AXL_VIRTUAL_BLOCK + x);
}

static int axl_read_plane(struct axl_device *axl, const struct axl_image *image, u32 plane,
			  ktime_t deadline)
{
	struct axl_scratch *scratch = axl->scratch;
	u32 bytes = axl_format_row_bytes(image->info, plane, image->width);
	u32 rows = axl_format_rows(image->info, plane, image->height);
	dma_addr_t iova = image->iova[plane];
	u32 crc = ~0;
	int ret;

	for (u32 y = 0; y < rows; y++, iova += image->stride[plane]) {
		/* After its timeout a job must not touch the buffer any more. */
		if (ktime_after(ktime_get(), deadline))
			return -ETIMEDOUT;
		ret = axl_dma(axl, iova, scratch->row, bytes, false);
		if (ret)
			return ret;
		crc = crc32_le(crc, scratch->row, bytes);
		if (plane == 0)
			axl_sum_row(scratch, image->info->luma, y);
		cond_resched();
	}
	scratch->result.crc32[plane] = ~crc;
	return 0;
}

static void axl_classify(struct axl_scratch *scratch)
{
	u32 cells = scratch->columns * scratch->rows;
	u64 total = 0;

	for (u32 i = 0; i < cells; i++)
		total += scratch->sum[i];
	scratch->mean = cells ? div_u64(total, AXL_CELL_PIXELS * cells) : 0;

	for (u32 i = 0; i < cells; i++) {
		u32 mean = scratch->sum[i] / AXL_CELL_PIXELS;

		if (mean >= scratch->mean + AXL_VIRTUAL_THRESHOLD)
			scratch->class[i] = AXL_VIRTUAL_BRIGHT;
		else if (mean + AXL_VIRTUAL_THRESHOLD <= scratch->mean)
			scratch->class[i] = AXL_VIRTUAL_DARK;
		else
			scratch->class[i] = AXL_NO_CLASS;
	}
}

static void axl_blob_push(struct axl_scratch *scratch, u32 *depth, u32 class, u32 column, u32 row)
{
	u32 cell = row * scratch->columns + column;

	/* Columns and rows before the first wrap around to large ones. */
	if (column >= scratch->columns || row >= scratch->rows || scratch->class[cell] != class)
		return;
	scratch->class[cell] = AXL_NO_CLASS;
	scratch->stack[(*depth)++] = cell;
}

/* Take the blob that @first belongs to out of the grid. */
static struct axl_blob axl_take_blob(struct axl_scratch *scratch, u32 first)
{
	u32 row = first / scratch->columns, column = first % scratch->columns, depth = 0;
	struct axl_blob blob = {
		.left = column, .right = column, .top = row, .bottom = row,
		.class = scratch->class[first],
	};

	axl_blob_push(scratch, &depth, blob.class, column, row);
	while (depth) {
		u32 cell = scratch->stack[--depth];

		row = cell / scratch->columns;
		column = cell % scratch->columns;
		blob.left = min(blob.left, column);
		blob.right = max(blob.right, column);
		blob.bottom = max(blob.bottom, row);
		blob.blocks++;
		blob.sum += scratch->sum[cell];
		axl_blob_push(scratch, &depth, blob.class, column - 1, row);
		axl_blob_push(scratch, &depth, blob.class, column + 1, row);
		axl_blob_push(scratch, &depth, blob.class, column, row - 1);
		axl_blob_push(scratch, &depth, blob.class, column, row + 1);
	}
	return blob;
}

static void axl_add_box(struct axl_scratch *scratch, const struct axl_blob *blob)
{
	s16 *box = scratch->result.boxes[scratch->result.num_boxes++];
	u32 mean = div_u64(blob->sum, AXL_CELL_PIXELS * blob->blocks);
	u32 contrast = blob->class == AXL_VIRTUAL_BRIGHT ? mean - scratch->mean
							 : scratch->mean - mean;

	box[0] = blob->left * AXL_VIRTUAL_BLOCK;
	box[1] = blob->top * AXL_VIRTUAL_BLOCK;
	box[2] = (blob->right + 1) * AXL_VIRTUAL_BLOCK;
	box[3] = (blob->bottom + 1) * AXL_VIRTUAL_BLOCK;
	box[4] = contrast * 32767 / 255;
	box[5] = blob->class;
}

static void axl_detect(struct axl_scratch *scratch)
{
	u32 cells = scratch->columns * scratch->rows;

	axl_classify(scratch);
	for (u32 i = 0; i < cells; i++) {
		struct axl_blob blob;

		if (scratch->class[i] == AXL_NO_CLASS)
			continue;
		blob = axl_take_blob(scratch, i);
		if (blob.blocks < AXL_VIRTUAL_MIN_BLOCKS)
			continue;
		axl_add_box(scratch, &blob);
		if (scratch->result.num_boxes == AXL_VIRTUAL_MAX_BOXES)
			return;
	}
}

static int axl_pixels_run_locked(struct axl_device *axl, const struct axl_image *image,
				 const struct axl_attachment *result, ktime_t deadline)
{
	struct axl_scratch *scratch = axl->scratch;
	int ret;

	scratch->columns = image->width / AXL_VIRTUAL_BLOCK;
	scratch->rows = image->height / AXL_VIRTUAL_BLOCK;
	memset(scratch->sum, 0, scratch->columns * scratch->rows * sizeof(*scratch->sum));
	for (u32 plane = 0; plane < image->info->num_planes; plane++) {
		ret = axl_read_plane(axl, image, plane, deadline);
		if (ret)
			return ret;
	}
	axl_detect(scratch);
	if (ktime_after(ktime_get(), deadline))
		return -ETIMEDOUT;
	return axl_dma(axl, result->iova, &scratch->result, sizeof(scratch->result), true);
}

int axl_pixels_run(struct axl_device *axl, const struct axl_image *image,
		   const struct axl_attachment *result, u32 model_id, u64 seqno,
		   ktime_t deadline)
{
	int ret;

	mutex_lock(&axl->engine);
	axl->scratch->result = (struct axl_virtual_result){
		.magic = AXL_VIRTUAL_MAGIC,
		.version = AXL_VIRTUAL_VERSION,
		.seqno = seqno,
		.width = image->width,
		.height = image->height,
		.fourcc = image->info->fourcc,
		.num_planes = image->info->num_planes,
		.model_id = model_id,
	};
	ret = axl_pixels_run_locked(axl, image, result, deadline);
	mutex_unlock(&axl->engine);
	return ret;
}
