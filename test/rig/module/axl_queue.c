// SPDX-License-Identifier: GPL-2.0
/* In which order the jobs of an open file run, and how long they take. */
#include <linux/module.h>

#include "axl.h"

#define AXL_CORES	4

static uint latency_us = 2000;
module_param(latency_us, uint, 0644);
MODULE_PARM_DESC(latency_us, "what a job takes before it reads its pixels");

static bool out_of_order;
module_param(out_of_order, bool, 0644);
MODULE_PARM_DESC(out_of_order, "jobs of files opened while it is set run side by side, the first of four the longest");

/* For a file that is being opened. WQ_MEM_RECLAIM: others wait for our fences, who must not wait for memory. */
struct workqueue_struct *axl_queue_new(struct axl_file *file)
{
	file->out_of_order = READ_ONCE(out_of_order);
	if (file->out_of_order)
		return alloc_workqueue("metis", WQ_UNBOUND | WQ_MEM_RECLAIM, AXL_CORES);
	return alloc_ordered_workqueue("metis", WQ_MEM_RECLAIM);
}

/* How long the job @seqno takes. */
u32 axl_queue_latency(const struct axl_file *file, u64 seqno)
{
	u32 latency = READ_ONCE(latency_us);

	return file->out_of_order ? latency * (AXL_CORES - (u32)(seqno - 1) % AXL_CORES) : latency;
}
