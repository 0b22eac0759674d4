// SPDX-License-Identifier: GPL-2.0
/* Jobs: the queue of an open file, how long a job takes, what it waits for and what can go wrong with it. */
#include <linux/dma-fence.h>
#include <linux/file.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sync_file.h>
#include <linux/uaccess.h>

#include "axl.h"
#include "axl_trace.h"

#define AXL_CORES	4
#define AXL_HOLD_US	1000	/* between looks at whether a held job may go on */

static uint max_in_flight = 4;
module_param(max_in_flight, uint, 0644);
MODULE_PARM_DESC(max_in_flight, "jobs that an open file may have queued at a time");

static uint default_timeout_us = USEC_PER_SEC;
module_param(default_timeout_us, uint, 0644);
MODULE_PARM_DESC(default_timeout_us, "for jobs submitted with a timeout of 0");

static bool reservation_fences = true;
module_param(reservation_fences, bool, 0644);
MODULE_PARM_DESC(reservation_fences, "add the fence of a job to the reservation objects of its buffers");

static uint latency_us = 2000;
module_param(latency_us, uint, 0644);
MODULE_PARM_DESC(latency_us, "what a job takes before it reads its pixels");

static bool out_of_order;
module_param(out_of_order, bool, 0644);
MODULE_PARM_DESC(out_of_order, "jobs of files opened while it is set run side by side, the first of four the longest");

/* Faults and delays of a job, which a test sets. */
static uint fail_every;
module_param(fail_every, uint, 0644);
MODULE_PARM_DESC(fail_every, "every n-th job of an open file ends with -EIO (0: none)");

static uint hang_every;
module_param(hang_every, uint, 0644);
MODULE_PARM_DESC(hang_every, "every n-th job of an open file hangs until its timeout (0: none)");

static bool hold;
module_param(hold, bool, 0644);
MODULE_PARM_DESC(hold, "jobs submitted while it is set go on when it is cleared, before they read their pixels");

struct axl_faults {
	bool held;
	bool hangs;
	bool fails;
};

struct axl_job {
	struct work_struct work;
	struct axl_file *file;
	struct axl_import *import;
	struct axl_attachment result;
	struct dma_fence *in_fence;
	struct dma_fence_cb in_fence_cb;
	struct dma_fence *fence;
	struct sync_file *sync_file;
	int fence_fd;
	ktime_t submitted;
	ktime_t deadline;
	u32 model_id;
	u32 latency_us;
	struct axl_faults faults;
	int error;		/* known before it runs */
};

/* The arguments that both generations of the submit ioctl share. */
struct axl_request {
	u32 handle;
	u32 model_id;
	u32 timeout_us;
	s32 in_fence_fd;	/* -1: none */
	s32 result_fd;
};

u32 axl_max_in_flight(void)
{
	return max_in_flight;
}

/* Called when a file is opened. WQ_MEM_RECLAIM: drivers that wait for our fences must not wait for memory. */
struct workqueue_struct *axl_queue_new(struct axl_file *file)
{
	file->out_of_order = READ_ONCE(out_of_order);
	if (file->out_of_order)
		return alloc_workqueue("metis", WQ_UNBOUND | WQ_MEM_RECLAIM, AXL_CORES);
	return alloc_ordered_workqueue("metis", WQ_MEM_RECLAIM);
}

/* How long the job @seqno takes. */
static u32 axl_queue_latency(const struct axl_file *file, u64 seqno)
{
	u32 latency = READ_ONCE(latency_us);

	return file->out_of_order ? latency * (AXL_CORES - (u32)(seqno - 1) % AXL_CORES) : latency;
}

static bool axl_is_nth(u64 seqno, u32 n)
{
	u32 rest = 1;

	if (n)
		div_u64_rem(seqno, n, &rest);
	return !rest;
}

/* What happens to the job @seqno, decided when it is submitted. */
static struct axl_faults axl_faults_of(u64 seqno)
{
	return (struct axl_faults){
		.held = READ_ONCE(hold),
		.hangs = axl_is_nth(seqno, READ_ONCE(hang_every)),
		.fails = axl_is_nth(seqno, READ_ONCE(fail_every)),
	};
}

/* Whether a held job must keep waiting: the test that holds it ends this, not a clock. */
static bool axl_faults_hold(const struct axl_faults *faults)
{
	return faults->held && READ_ONCE(hold);
}

static void axl_in_fence_signalled(struct dma_fence *fence, struct dma_fence_cb *cb)
{
	wake_up_all(&container_of(cb, struct axl_job, in_fence_cb)->file->wake);
}

/* Why a job must not go on: the file is closed, or the card is gone. */
static int axl_job_cut_short(struct axl_file *file)
{
	if (READ_ONCE(file->axl->gone))
		return -ENODEV;
	return READ_ONCE(file->closing) ? -ECANCELED : 0;
}

/* Sleep until @until or @in_fence, or until the job must not go on. */
static int axl_job_sleep(struct axl_job *job, ktime_t until, struct dma_fence *in_fence)
{
	struct axl_file *file = job->file;
	ktime_t left = ktime_sub(until, ktime_get());

	if (left > 0)
		wait_event_hrtimeout(file->wake, axl_job_cut_short(file) ||
				     (in_fence && dma_fence_is_signaled(in_fence)), left);
	return axl_job_cut_short(file);
}

static int axl_job_await_in_fence(struct axl_job *job)
{
	int ret, status;

	if (!dma_fence_add_callback(job->in_fence, &job->in_fence_cb, axl_in_fence_signalled)) {
		ret = axl_job_sleep(job, job->deadline, job->in_fence);
		dma_fence_remove_callback(job->in_fence, &job->in_fence_cb);
		if (ret)
			return ret;
	}
	status = dma_fence_get_status(job->in_fence);
	if (!status)
		return -ETIMEDOUT;
	return status < 0 ? status : 0;
}

static int axl_job_held(struct axl_job *job)
{
	while (axl_faults_hold(&job->faults)) {
		int ret = axl_job_sleep(job, ktime_add_us(ktime_get(), AXL_HOLD_US), NULL);

		if (ret)
			return ret;
		if (ktime_after(ktime_get(), job->deadline))
			return -ETIMEDOUT;
	}
	return 0;
}

static int axl_job_execute(struct axl_job *job)
{
	ktime_t end;
	int ret;

	if (job->error)
		return job->error;
	if (job->in_fence) {
		ret = axl_job_await_in_fence(job);
		if (ret)
			return ret;
	}

	end = ktime_add_us(ktime_get(), job->latency_us);
	if (job->faults.hangs || ktime_after(end, job->deadline)) {
		ret = axl_job_sleep(job, job->deadline, NULL);
		return ret ?: -ETIMEDOUT;
	}
	ret = axl_job_sleep(job, end, NULL) ?: axl_job_held(job);
	if (ret)
		return ret;
	if (job->faults.fails)
		return -EIO;

	/* Read the pixels last: if the buffer went back to the camera too early, the result is wrong. */
	return axl_pixels_run(job->file->axl, &job->import->image, &job->result,
			      job->model_id, job->fence->seqno, job->deadline);
}

/* Release a job's resources. Its fence has signalled, or was never published. */
static void axl_job_free(struct axl_job *job)
{
	dma_fence_put(job->in_fence);
	dma_fence_put(job->fence);
	if (job->result.dmabuf)
		axl_detach(&job->result);
	if (job->import)
		axl_import_put(job->import);
	kfree(job);
	atomic_dec(&axl_live.jobs);
}

static void axl_job_work(struct work_struct *work)
{
	struct axl_job *job = container_of(work, struct axl_job, work);
	struct dma_fence *fence = job->fence;
	bool cookie = dma_fence_begin_signalling();
	int status = axl_job_execute(job);

	if (status)
		dma_fence_set_error(fence, status);
	trace_axl_complete(job->import->handle, fence->context, fence->seqno, status);
	/* Do this before the signal: a program that sees it may submit the next job at once. */
	atomic_dec(&job->file->queued);
	dma_fence_signal(fence);
	dma_fence_end_signalling(cookie);

	/* Unmapping locks reservation objects, whose holders may wait for this fence. */
	axl_job_free(job);
}

static int axl_job_take_slot(struct axl_file *file)
{
	int limit = READ_ONCE(max_in_flight);

	if (atomic_inc_return(&file->queued) <= limit)
		return 0;
	atomic_dec(&file->queued);
	return -EBUSY;
}

static int axl_job_take_result(struct axl_job *job, s32 fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	int ret = -EINVAL;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	if (dmabuf->size >= sizeof(struct axl_virtual_result))
		ret = axl_attach(job->file->axl, dmabuf, DMA_FROM_DEVICE, &job->result);
	if (ret)
		dma_buf_put(dmabuf);
	return ret;
}

static int axl_job_take_in_fence(struct axl_job *job, s32 fd)
{
	struct file *file = fget(fd);

	if (!file)
		return -EBADF;
	fput(file);
	job->in_fence = sync_file_get_fence(fd);
	return job->in_fence ? 0 : -EINVAL;
}

/* Make a job with all that it needs except the fence: its place in the queue is not known yet. */
static struct axl_job *axl_job_new(struct axl_file *file, const struct axl_request *request)
{
	u32 timeout_us = request->timeout_us ?: READ_ONCE(default_timeout_us);
	struct axl_job *job;
	int ret;

	job = kzalloc(sizeof(*job), GFP_KERNEL);
	if (!job)
		return ERR_PTR(-ENOMEM);
	atomic_inc(&axl_live.jobs);
	INIT_WORK(&job->work, axl_job_work);
	job->file = file;
	job->model_id = request->model_id;
	job->submitted = ktime_get();
	job->deadline = ktime_add_us(job->submitted, timeout_us);

	ret = -ENOENT;
	job->import = axl_import_get(file, request->handle);
	if (!job->import)
		goto err_free;
	ret = -EINVAL;
	if (job->import->dir == DMA_FROM_DEVICE)	/* the IOMMU would not let us read */
		goto err_free;
	if (request->in_fence_fd != -1) {
		ret = axl_job_take_in_fence(job, request->in_fence_fd);
		if (ret)
			goto err_free;
	}
	ret = axl_job_take_result(job, request->result_fd);
	if (ret)
		goto err_free;
	return job;

err_free:
	axl_job_free(job);
	return ERR_PTR(ret);
}

/* Take a place in the queue and make the fence for it; ended by one of the next two. */
static struct axl_job *axl_job_begin(struct axl_file *file, const struct axl_request *request)
{
	struct axl_job *job;
	int ret;

	ret = axl_job_take_slot(file);
	if (ret)
		return ERR_PTR(ret);
	job = axl_job_new(file, request);
	if (IS_ERR(job)) {
		ret = PTR_ERR(job);
		goto err_slot;
	}

	mutex_lock(&file->submit_lock);
	ret = -ENOMEM;
	job->fence = axl_fence_new(file);
	if (!job->fence)
		goto err_unlock;
	job->sync_file = sync_file_create(job->fence);
	if (!job->sync_file)
		goto err_unlock;
	job->fence_fd = get_unused_fd_flags(O_CLOEXEC);
	if (job->fence_fd >= 0)
		return job;

	ret = job->fence_fd;
	fput(job->sync_file->file);
err_unlock:
	mutex_unlock(&file->submit_lock);
	axl_job_free(job);
err_slot:
	atomic_dec(&file->queued);
	return ERR_PTR(ret);
}

static void axl_job_drop_fd(struct axl_job *job)
{
	put_unused_fd(job->fence_fd);
	fput(job->sync_file->file);
}

static void axl_job_abort(struct axl_job *job)
{
	struct axl_file *file = job->file;

	axl_job_drop_fd(job);
	mutex_unlock(&file->submit_lock);
	axl_job_free(job);
	atomic_dec(&file->queued);
}

static int axl_job_reserve(struct axl_job *job)
{
	struct dma_fence *fence = job->fence;
	int ret = 0;

	if (!READ_ONCE(reservation_fences))
		return 0;
	for (u32 i = 0; i < job->import->num_attachments && !ret; i++)
		ret = axl_fence_reserve(fence, job->import->attachments[i].dmabuf,
					DMA_RESV_USAGE_READ);
	return ret ?: axl_fence_reserve(fence, job->result.dmabuf, DMA_RESV_USAGE_WRITE);
}

static int axl_job_commit(struct axl_job *job)
{
	struct axl_file *file = job->file;
	struct dma_fence *fence = job->fence;
	int ret;

	/*
	 * Half reserved, the fence is already public and must signal in its turn:
	 * such a job goes through the queue as well, only to fail there.
	 */
	ret = axl_job_reserve(job);
	job->error = ret;
	job->latency_us = axl_queue_latency(file, fence->seqno);
	job->faults = axl_faults_of(fence->seqno);
	file->seqno++;
	trace_axl_submit(job->import->handle, fence->context, fence->seqno, job->model_id);
	if (ret)
		axl_job_drop_fd(job);
	else
		fd_install(job->fence_fd, job->sync_file->file);
	queue_work(file->queue, &job->work);
	mutex_unlock(&file->submit_lock);
	return ret;
}

long axl_ioctl_submit(struct axl_file *file, void __user *up)
{
	struct axl_submit args;
	struct axl_job *job;

	if (copy_from_user(&args, up, sizeof(args)))
		return -EFAULT;
	if (args.pad)
		return -EINVAL;

	job = axl_job_begin(file, &(struct axl_request){
		.handle = args.input_handle,
		.model_id = args.model_id,
		.timeout_us = args.timeout_us,
		.in_fence_fd = -1,
		.result_fd = args.result_fd,
	});
	if (IS_ERR(job))
		return PTR_ERR(job);

	args.fence_fd = job->fence_fd;
	args.submit_us = ktime_to_us(job->submitted);
	args.completion_us = 0;
	if (copy_to_user(up, &args, sizeof(args))) {
		axl_job_abort(job);
		return -EFAULT;
	}
	return axl_job_commit(job);
}

long axl_ioctl_submit2(struct axl_file *file, void __user *up)
{
	struct axl_submit2 args;
	struct axl_job *job;
	int ret;

	ret = axl_copy_sized(&args, sizeof(args), up);
	if (ret)
		return ret;
	if (args.flags)
		return -EINVAL;

	job = axl_job_begin(file, &(struct axl_request){
		.handle = args.input_handle,
		.model_id = args.model_id,
		.timeout_us = args.timeout_us,
		.in_fence_fd = args.in_fence_fd,
		.result_fd = args.result_fd,
	});
	if (IS_ERR(job))
		return PTR_ERR(job);

	args.fence_fd = job->fence_fd;
	args.submit_us = ktime_to_us(job->submitted);
	args.seqno = job->fence->seqno;
	if (copy_to_user(up, &args, sizeof(args))) {
		axl_job_abort(job);
		return -EFAULT;
	}
	return axl_job_commit(job);
}
