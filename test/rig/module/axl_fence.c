// SPDX-License-Identifier: GPL-2.0
/* The fences of jobs. A fence may outlive all other objects, so each one pins the module. */
#include <linux/dma-fence.h>
#include <linux/dma-resv.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "axl.h"

struct axl_fence {
	struct dma_fence base;
	spinlock_t lock;	/* for dma_fence_init() */
};

static const char *axl_fence_driver_name(struct dma_fence *fence)
{
	return "axl";
}

static const char *axl_fence_timeline_name(struct dma_fence *fence)
{
	return "metis-0";
}

static void axl_fence_reclaim(struct rcu_head *rcu)
{
	struct dma_fence *base = container_of(rcu, struct dma_fence, rcu);

	kfree(container_of(base, struct axl_fence, base));
	atomic_dec(&axl_live.fences);
	/* The last instructions here are safe: module exit waits for RCU callbacks. */
	module_put(THIS_MODULE);
}

static void axl_fence_release(struct dma_fence *base)
{
	call_rcu(&base->rcu, axl_fence_reclaim);
}

/* Live as long as a sync_file or a reservation object refers to them, and pin the module. */
static const struct dma_fence_ops axl_fence_ops = {
	.get_driver_name = axl_fence_driver_name,
	.get_timeline_name = axl_fence_timeline_name,
	.release = axl_fence_release,
};

/* The fence of the next job of @file, whose submit_lock the caller holds. */
struct dma_fence *axl_fence_new(struct axl_file *file)
{
	struct axl_fence *fence = kzalloc(sizeof(*fence), GFP_KERNEL);
	u64 context;

	if (!fence)
		return NULL;
	__module_get(THIS_MODULE);
	atomic_inc(&axl_live.fences);
	spin_lock_init(&fence->lock);
	/* Fences of one context must signal in the order of their seqno: parallel jobs have a context each. */
	context = file->out_of_order ? dma_fence_context_alloc(1) : file->context;
	dma_fence_init(&fence->base, &axl_fence_ops, &fence->lock, context, file->seqno + 1);
	return &fence->base;
}

/* Add @fence to @dmabuf's reservation object, so that the buffer's other users wait for it. */
int axl_fence_reserve(struct dma_fence *fence, struct dma_buf *dmabuf, enum dma_resv_usage usage)
{
	int ret = dma_resv_lock(dmabuf->resv, NULL);

	if (ret)
		return ret;
	ret = dma_resv_reserve_fences(dmabuf->resv, 1);
	if (!ret)
		dma_resv_add_fence(dmabuf->resv, fence, usage);
	dma_resv_unlock(dmabuf->resv);
	return ret;
}
