// SPDX-License-Identifier: Apache-2.0
/*
 * places.c - where a job's ranks are to be, and whether the memory that they have fits there
 *
 * A job comes back to devices of the type that it was on, and no other (replay.c), so each session tells how much memory the
 * device has that it is to have.
 */
#include <stdio.h>
#include <string.h>

#include "ckpt_places.h"

int places_make(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating_where *w, struct seating *t,
		struct why *why)
{
	bool none = !job->seating.ranks;
	uint8_t map[SEATING_DEVICES];

	if (none)
		seating_make(t, job->ranks, 1);
	else
		*t = job->seating;
	if (t->ranks != job->ranks)
		return why_set(why, -EBADMSG, "its part 'job' is damaged: places of %d ranks, and %d ranks", t->ranks,
			       job->ranks);
	if (!seating_one_host(t))
		return why_set(why, -ENOTSUP, "its ranks were on several hosts, which this version does not bring back");
	if (none)
		t->devices = 0;		/* nobody has counted them */
	/* The job's file counts the host's device nodes. Programs may be allowed to use fewer: each proxy has their number. */
	for (int i = 0; i < f->proxies; i++)
		if (f->proxy[i].info.devices)
			t->devices = (int)f->proxy[i].info.devices;
	for (int i = f->proxies - 1; none && i >= 0; i--)
		t->rank[f->proxy[i].rank].first = facts_logical(&f->proxy[i]);
	if (w->logical.given) {
		int err = seating_on_map(&w->logical, t->devices, 0, map, why);

		if (!err)
			seating_put(t, map);
		return err;
	}
	seating_instead(t, w);
	for (int i = 0; i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];
		int device = seating_device(w, p->rank, p->info.device.ordinal);

		if (device >= SEATING_DEVICES)
			return why_set(why, -EINVAL, "rank %d has no device %d", p->rank, device);
		seating_move(t, p->rank, facts_logical(p), device);
	}
	return 0;
}

uint64_t places_most(const struct ckpt_proxy *p)
{
	return p->info.peak > p->info.mapped ? p->info.peak : p->info.mapped;
}

void places_memory(const struct ckpt_facts *f, const struct seating *t, struct places_device d[SEATING_DEVICES])
{
	memset(d, 0, SEATING_DEVICES * sizeof(*d));
	for (int i = 0; i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];
		struct places_device *on = &d[seating_physical(t, p->rank, facts_logical(p))];

		on->sessions++;
		on->now += p->info.mapped;
		on->most += places_most(p);
		if (p->info.device.total_mem > on->total)
			on->total = p->info.device.total_mem;
	}
}

/* "rank 0: 512 MiB, rank 2: 1024 MiB" */
static void list_ranks(const struct ckpt_facts *f, const struct seating *t, int device, bool most, char *text, size_t size)
{
	size_t at = 0;

	*text = 0;
	for (int i = 0; i < f->proxies && at < size; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];

		if (seating_physical(t, p->rank, facts_logical(p)) == device)
			at += snprintf(text + at, size - at, "%srank %d: %llu MiB", at ? ", " : "", p->rank,
				       (unsigned long long)(most ? places_most(p) : p->info.mapped) >> 20);
	}
}

int places_fit(const struct ckpt_facts *f, const struct seating *t, bool most, struct why *why)
{
	struct places_device d[SEATING_DEVICES];
	char ranks[512];

	places_memory(f, t, d);
	for (int i = 0; i < SEATING_DEVICES; i++) {
		bool once = d[i].now <= d[i].total;

		if (!d[i].total || (once && (!most || d[i].most <= d[i].total)))
			continue;
		list_ranks(f, t, i, once, ranks, sizeof(ranks));
		return why_set(why, -ENOSPC, "device %d has %llu MiB, and what is to be there %s %llu MiB (%s)%s", i,
			       (unsigned long long)d[i].total >> 20, once ? "had, at most," : "has",
			       (unsigned long long)(once ? d[i].most : d[i].now) >> 20, ranks,
			       once ? ": --below-peak takes it as it is now" : "");
	}
	return 0;
}
