// SPDX-License-Identifier: GPL-2.0
/* What goes wrong, or waits, because a test wants it to. */
#include <linux/math64.h>
#include <linux/module.h>

#include "axl.h"

static uint fail_every;
module_param(fail_every, uint, 0644);
MODULE_PARM_DESC(fail_every, "every n-th job of an open file ends with -EIO (0: none)");

static uint hang_every;
module_param(hang_every, uint, 0644);
MODULE_PARM_DESC(hang_every, "every n-th job of an open file hangs until its timeout (0: none)");

static bool hold;
module_param(hold, bool, 0644);
MODULE_PARM_DESC(hold, "jobs submitted while it is set go on when it is cleared, before they read their pixels");

static bool axl_is_nth(u64 seqno, u32 n)
{
	u32 rest = 1;

	if (n)
		div_u64_rem(seqno, n, &rest);
	return !rest;
}

/* What happens to the job @seqno, decided when it is submitted. */
struct axl_faults axl_faults_of(u64 seqno)
{
	return (struct axl_faults){
		.held = READ_ONCE(hold),
		.hangs = axl_is_nth(seqno, READ_ONCE(hang_every)),
		.fails = axl_is_nth(seqno, READ_ONCE(fail_every)),
	};
}

/* Whether a held job has to wait on: whoever holds it says when it goes on, not a clock. */
bool axl_faults_hold(const struct axl_faults *faults)
{
	return faults->held && READ_ONCE(hold);
}
