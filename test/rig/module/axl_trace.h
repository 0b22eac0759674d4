/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM axl

#if !defined(AXL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define AXL_TRACE_H

#include <linux/dma-buf.h>
#include <linux/tracepoint.h>

/* One event per dma-buf: an image in two buffers is two events with one handle. */
TRACE_EVENT(axl_dmabuf_import,
	TP_PROTO(u32 handle, struct dma_buf *dmabuf, dma_addr_t iova, size_t size),
	TP_ARGS(handle, dmabuf, iova, size),
	TP_STRUCT__entry(
		__field(u32,		handle)
		__field(unsigned long,	inode)
		__field(u64,		iova)
		__field(size_t,		size)
		__string(exporter,	dmabuf->exp_name)
	),
	TP_fast_assign(
		__entry->handle = handle;
		__entry->inode = file_inode(dmabuf->file)->i_ino;
		__entry->iova = iova;
		__entry->size = size;
		__assign_str(exporter);
	),
	TP_printk("handle=%u inode=%lu exporter=%s iova=0x%llx size=%zu",
		  __entry->handle, __entry->inode, __get_str(exporter),
		  __entry->iova, __entry->size)
);

/* Recorded when the attachment ends; a job in flight delays that until after the ioctl. */
TRACE_EVENT(axl_dmabuf_release,
	TP_PROTO(u32 handle, struct dma_buf *dmabuf),
	TP_ARGS(handle, dmabuf),
	TP_STRUCT__entry(
		__field(u32,		handle)
		__field(unsigned long,	inode)
	),
	TP_fast_assign(
		__entry->handle = handle;
		__entry->inode = file_inode(dmabuf->file)->i_ino;
	),
	TP_printk("handle=%u inode=%lu", __entry->handle, __entry->inode)
);

TRACE_EVENT(axl_submit,
	TP_PROTO(u32 handle, u64 context, u64 seqno, u32 model_id),
	TP_ARGS(handle, context, seqno, model_id),
	TP_STRUCT__entry(
		__field(u32,	handle)
		__field(u64,	context)
		__field(u64,	seqno)
		__field(u32,	model_id)
	),
	TP_fast_assign(
		__entry->handle = handle;
		__entry->context = context;
		__entry->seqno = seqno;
		__entry->model_id = model_id;
	),
	TP_printk("handle=%u ctx=%llu seqno=%llu model=%u", __entry->handle,
		  __entry->context, __entry->seqno, __entry->model_id)
);

TRACE_EVENT(axl_complete,
	TP_PROTO(u32 handle, u64 context, u64 seqno, int status),
	TP_ARGS(handle, context, seqno, status),
	TP_STRUCT__entry(
		__field(u32,	handle)
		__field(u64,	context)
		__field(u64,	seqno)
		__field(int,	status)
	),
	TP_fast_assign(
		__entry->handle = handle;
		__entry->context = context;
		__entry->seqno = seqno;
		__entry->status = status;
	),
	TP_printk("handle=%u ctx=%llu seqno=%llu status=%d", __entry->handle,
		  __entry->context, __entry->seqno, __entry->status)
);

#endif /* AXL_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE axl_trace
#include <trace/define_trace.h>
