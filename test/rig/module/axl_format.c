// SPDX-License-Identifier: GPL-2.0
/* Which formats the virtual Metis reads, and what a valid layout of one is. */
#include <drm/drm_fourcc.h>
#include <linux/align.h>
#include <linux/math.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/uaccess.h>

#include "axl.h"

static uint stride_align = 1;
module_param(stride_align, uint, 0644);
MODULE_PARM_DESC(stride_align, "strides must be multiples of this power of two");

static uint offset_align = 1;
module_param(offset_align, uint, 0444);
MODULE_PARM_DESC(offset_align, "plane offsets must be multiples of this power of two");

/*
 * All linear. A sample is what repeats along a row: YUYV has one of four bytes
 * for two pixels. DRM names are those of a little-endian word, so RGB888 lies as
 * B, G, R in memory.
 */
static const struct axl_format_info axl_formats[] = {
	{ DRM_FORMAT_NV12, AXL_LUMA_Y, 2, { { 1, 1, 1 }, { 2, 2, 2 } } },
	{ DRM_FORMAT_NV21, AXL_LUMA_Y, 2, { { 1, 1, 1 }, { 2, 2, 2 } } },
	{ DRM_FORMAT_NV16, AXL_LUMA_Y, 2, { { 1, 1, 1 }, { 2, 2, 1 } } },
	{ DRM_FORMAT_YUV420, AXL_LUMA_Y, 3, { { 1, 1, 1 }, { 1, 2, 2 }, { 1, 2, 2 } } },
	{ DRM_FORMAT_YUYV, AXL_LUMA_YUYV, 1, { { 4, 2, 1 } } },
	{ DRM_FORMAT_RGB888, AXL_LUMA_BGR, 1, { { 3, 1, 1 } } },
	{ DRM_FORMAT_BGR888, AXL_LUMA_RGB, 1, { { 3, 1, 1 } } },
	{ DRM_FORMAT_R8, AXL_LUMA_Y, 1, { { 1, 1, 1 } } },
};

const struct axl_format_info *axl_format_find(u32 fourcc, u64 modifier)
{
	if (modifier != DRM_FORMAT_MOD_LINEAR)
		return NULL;
	for (size_t i = 0; i < ARRAY_SIZE(axl_formats); i++)
		if (axl_formats[i].fourcc == fourcc)
			return &axl_formats[i];
	return NULL;
}

u32 axl_format_row_bytes(const struct axl_format_info *info, u32 plane, u32 width)
{
	return DIV_ROUND_UP(width, info->planes[plane].hsub) * info->planes[plane].cpp;
}

u32 axl_format_rows(const struct axl_format_info *info, u32 plane, u32 height)
{
	return DIV_ROUND_UP(height, info->planes[plane].vsub);
}

/* Check a plane against the image's size and against the @room in its dma-buf. */
int axl_format_check_plane(const struct axl_format_info *info, u32 plane, u32 width,
			   u32 height, const struct axl_plane *layout, size_t room)
{
	u32 row_bytes = axl_format_row_bytes(info, plane, width);
	u64 last_row = (u64)(axl_format_rows(info, plane, height) - 1) * layout->stride;
	u64 end;

	if (layout->stride < row_bytes || !IS_ALIGNED(layout->stride, stride_align))
		return -EINVAL;
	if (!IS_ALIGNED(layout->offset, offset_align))
		return -EINVAL;
	if (layout->size < last_row + row_bytes)
		return -EINVAL;
	if (check_add_overflow(layout->offset, layout->size, &end) || end > room)
		return -EINVAL;
	return 0;
}

long axl_ioctl_query(void __user *up)
{
	struct axl_format __user *formats;
	struct axl_query args;
	u32 room;
	int ret;

	ret = axl_copy_sized(&args, sizeof(args), up);
	if (ret)
		return ret;

	formats = u64_to_user_ptr(args.formats_ptr);
	room = min_t(u32, args.num_formats, ARRAY_SIZE(axl_formats));
	for (u32 i = 0; i < room; i++) {
		struct axl_format format = {
			.fourcc = axl_formats[i].fourcc,
			.modifier = DRM_FORMAT_MOD_LINEAR,
		};

		if (copy_to_user(&formats[i], &format, sizeof(format)))
			return -EFAULT;
	}

	args.abi_version = AXL_ABI_VERSION;
	args.max_in_flight = axl_max_in_flight();
	args.stride_align = stride_align;
	args.offset_align = offset_align;
	args.num_formats = ARRAY_SIZE(axl_formats);
	return copy_to_user(up, &args, sizeof(args)) ? -EFAULT : 0;
}
