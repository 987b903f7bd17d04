// SPDX-License-Identifier: Apache-2.0
/*
 * places.c - where a job's ranks are to be, and whether the memory that they have fits there
 *
 * A session tells how much memory its device has. A device that no session is on counts as large as the largest one of the
 * job: a restore refuses a device of another type (replay.c).
 */
#include <stdio.h>
#include <string.h>

#include "ckpt_places.h"

/* The program can write the memory that its proxy reads these numbers from: check them before they are indices. */
static int check_numbers(const struct ckpt_facts *f, int ranks, struct why *why)
{
	for (int i = 0; i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];
		int device = facts_logical(p), ordinal = p->info.device.ordinal;

		if (p->rank < 0 || p->rank >= ranks || device < 0 || device >= SEATING_DEVICES || ordinal < 0 ||
		    ordinal >= SEATING_DEVICES)
			return why_set(why, -EBADMSG, "its part 'job' is damaged: a session of rank %d on device %d, number %d",
				       p->rank, ordinal, device);
	}
	return 0;
}

/* Does what --device and --to say name a device for each session? */
static int check_where(const struct ckpt_facts *f, const struct seating_where *w, struct why *why)
{
	for (int i = 0; i < f->proxies; i++)
		if (facts_home(f, i) >= 0 && w->all)
			return why_set(why, -EINVAL, "the process works on several devices: name them all "
				       "(A,B or OLD=NEW,OLD=NEW)");
	return 0;
}

/* Do ranks take turns as it is? Files of older versions say so among the options. */
static bool took_turns(const struct ckpt_facts *f, const struct rundir_job *job)
{
	const char *slices = facts_option(f, "slices");

	return job->seating.share ? job->seating.slices : slices && !strcmp(slices, "1");
}

static bool shares_device(const struct seating *t, const struct ckpt_proxy *p)
{
	return seating_sharers(t, 0, seating_physical(t, p->rank, facts_logical(p))) > 1;
}

/* Could the sessions of each shared device take turns? Those of a job of one rank share together. */
static bool can_take_turns(const struct ckpt_facts *f, const struct seating *t)
{
	bool can = t->ranks > 1;

	for (int i = 0; i < f->proxies; i++)
		if (shares_device(t, &f->proxy[i]))
			can &= f->proxy[i].info.turns;
	return can;
}

/* Does a session wait for memory that others have? */
static bool is_crowded(const struct ckpt_facts *f, const struct seating *t)
{
	bool is = false;

	for (int i = 0; i < f->proxies; i++)
		is |= f->proxy[i].info.crowded && shares_device(t, &f->proxy[i]);
	return is;
}

/* Refuses a table by which ranks share a device that they may not share. */
static int check_alone(const struct ckpt_facts *f, const struct seating *t, struct why *why)
{
	const char *reduction = facts_option(f, "reduction");
	bool nccl = reduction && !strcmp(reduction, "nccl");
	struct places_device d[SEATING_DEVICES];

	if (!nccl && t->share != SHARE_NEVER)
		return 0;
	places_memory(f, t, d);
	for (int i = 0; i < SEATING_DEVICES; i++) {
		if (nccl && d[i].sessions > 1)
			return why_set(why, -EINVAL, "the job runs with --reduction nccl: NCCL takes no two ranks on one "
				       "device, and %d would be on device %d", d[i].sessions, i);
		if (t->share == SHARE_NEVER && seating_sharers(t, 0, i) > 1)
			return why_set(why, -EINVAL, "the job's ranks share no device (--share never), and %d would be on device %d",
				       seating_sharers(t, 0, i), i);
	}
	return 0;
}

/* Does what ranks have, or have had, fit their devices beside each other, as their proxies reckon it? */
static bool fits_together(const struct ckpt_facts *f, const struct seating *t, bool most)
{
	struct places_device d[SEATING_DEVICES];
	bool fits = true;

	places_memory(f, t, d);
	for (int i = 0; i < SEATING_DEVICES; i++)
		if (d[i].total && d[i].sessions > 1)
			fits &= (most ? d[i].most : d[i].now) <= d[i].total - ctl_spare(d[i].total);
	return fits;
}

/* How ranks share devices, on t's map. moved: that is another one than before. */
static int let_share(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating_where *w, bool moved,
		     bool below_peak, struct seating *t, struct why *why)
{
	bool turns = w->now ? w->now->slices : took_turns(f, job);
	enum seating_share share = w->share ?: w->now ? w->now->share : job->seating.share;

	t->share = share;
	t->slices = turns;
	if (w->share == SHARE_SLICES && t->ranks < 2)
		return why_set(why, -EINVAL, "--share slices is for ranks, which --ranks starts");
	if (w->how || (share && share != SHARE_AUTO)) {
		seating_let_share(t, share, w->how);
	} else if (share && (w->share || moved)) {
		seating_let_share(t, share, SHARE_TOGETHER);
		if (!moved && is_crowded(f, t) && !can_take_turns(f, t))
			return why_set(why, -ENOTSUP, "a rank waits for memory that other ranks of its device have, and some of them "
				       "cannot take turns with it (docs/elasticity.md)");
		t->slices = (is_crowded(f, t) || !fits_together(f, t, !below_peak)) && can_take_turns(f, t);
	}
	return w->share || moved ? check_alone(f, t, why) : 0;
}

static int put_sessions(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating_where *w, struct seating *t,
			struct why *why)
{
	bool none = !job->seating.ranks;
	uint8_t map[SEATING_DEVICES];
	int err;

	if (none)
		seating_make(t, job->ranks, 1);
	else
		*t = job->seating;
	if (t->ranks != job->ranks)
		return why_set(why, -EBADMSG, "its part 'job' is damaged: places of %d ranks, and %d ranks", t->ranks,
			       job->ranks);
	if (!seating_one_host(t))
		return why_set(why, -ENOTSUP, "its ranks were on several hosts, which this version does not bring back");
	err = check_numbers(f, t->ranks, why) ?: check_where(f, w, why);
	if (err)
		return err;
	if (none)
		t->devices = 0;		/* nobody has counted them */
	/* The job's file counts the host's device nodes. Programs may be allowed to use fewer: each proxy has their number. */
	for (int i = 0; i < f->proxies; i++)
		if (f->proxy[i].info.devices)
			t->devices = (int)f->proxy[i].info.devices;
	for (int i = f->proxies - 1; none && i >= 0; i--)
		t->rank[f->proxy[i].rank].first = facts_logical(&f->proxy[i]);
	if (w->now && w->now->ranks == t->ranks) {
		for (int r = 0; r < t->ranks; r++)
			memcpy(t->rank[r].physical, w->now->rank[r].physical, sizeof(t->rank[r].physical));
		return 0;
	}
	if (w->logical.given) {
		/* An older proxy has not said how many there are: a list does. */
		err = seating_on_map(&w->logical, t->devices ?: w->logical.listed, 0, map, why);
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

int places_make(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating_where *w, bool below_peak,
		struct seating *t, struct why *why)
{
	bool moved = false;
	int err = put_sessions(f, job, w, t, why);

	for (int i = 0; !err && !w->now && i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];

		moved |= seating_physical(t, p->rank, facts_logical(p)) != p->info.device.ordinal;
	}
	return err ?: let_share(f, job, w, moved, below_peak, t, why);
}

const struct ckpt_proxy *places_next(const struct ckpt_facts *f, const struct seating *t, int *at)
{
	while (*at < f->proxies * t->ranks) {
		const struct ckpt_proxy *p = &f->proxy[*at % f->proxies];

		if (p->rank == (*at)++ / f->proxies)
			return p;
	}
	return NULL;
}

uint64_t places_most(const struct ckpt_proxy *p)
{
	return p->info.peak > p->info.mapped ? p->info.peak : p->info.mapped;
}

static void add(uint64_t *all, uint64_t more, bool turns)
{
	if (!turns)
		*all += more;
	else if (*all < more)
		*all = more;
}

void places_memory(const struct ckpt_facts *f, const struct seating *t, struct places_device d[SEATING_DEVICES])
{
	uint64_t largest = 0;

	memset(d, 0, SEATING_DEVICES * sizeof(*d));
	for (int i = 0; i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];
		int device = seating_physical(t, p->rank, facts_logical(p));
		bool in_turn = t->slices && seating_sharers(t, 0, device) > 1;	/* as the supervisor counts them (job.c) */
		struct places_device *on = &d[device];

		on->sessions++;
		add(&on->now, p->info.mapped, in_turn);
		add(&on->most, places_most(p), in_turn);
		d[p->info.device.ordinal].total = p->info.device.total_mem;
		largest = p->info.device.total_mem > largest ? p->info.device.total_mem : largest;
	}
	for (int i = 0; i < SEATING_DEVICES; i++)
		if (!d[i].total)
			d[i].total = largest;
}

/* "rank 0: 512 MiB, rank 2: 1024 MiB, and 6 more" */
static void list_ranks(const struct ckpt_facts *f, const struct seating *t, int device, bool most, char *text, size_t size)
{
	const struct ckpt_proxy *p;
	int next = 0, more = 0;
	size_t at = 0;

	while ((p = places_next(f, t, &next))) {
		if (seating_physical(t, p->rank, facts_logical(p)) != device)
			continue;
		if (size - at < 64)
			more++;
		else
			at += snprintf(text + at, size - at, "%srank %d: %llu MiB", at ? ", " : "", p->rank,
				       (unsigned long long)(most ? places_most(p) : p->info.mapped) >> 20);
	}
	if (more)
		snprintf(text + at, size - at, ", and %d more", more);
}

int places_fit(const struct ckpt_facts *f, const struct seating *t, bool most, struct why *why)
{
	struct places_device d[SEATING_DEVICES];
	char ranks[512];

	places_memory(f, t, d);
	for (int i = 0; i < SEATING_DEVICES; i++) {
		unsigned long long mib = d[i].total >> 20;
		bool once = d[i].now <= d[i].total;

		if (!d[i].total || (once && (!most || d[i].most <= d[i].total)))
			continue;
		list_ranks(f, t, i, once, ranks, sizeof(ranks));
		if (!once)
			return why_set(why, -ENOSPC, "device %d has %llu MiB, and the ranks that would be there have %llu "
				       "MiB (%s): give them more devices", i, mib, (unsigned long long)d[i].now >> 20,
				       ranks);
		return why_set(why, -ENOSPC, "device %d has %llu MiB, and the ranks that would be there have had up to %llu "
			       "MiB (%s): --below-peak allows it, since what they have now fits", i, mib,
			       (unsigned long long)d[i].most >> 20, ranks);
	}
	return 0;
}

/* MemAvailable, bytes; 0: not known. */
static uint64_t host_available(void)
{
	unsigned long long kib = 0;
	FILE *in = fopen("/proc/meminfo", "re");
	char line[128];

	while (in && fgets(line, sizeof(line), in) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
		;
	if (in)
		fclose(in);
	return kib << 10;
}

bool places_twice(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating *t)
{
	struct places_device d[SEATING_DEVICES];
	uint64_t all = 0;

	/* Sharers by slices take nearly all of a device at once. */
	if (t->slices || took_turns(f, job))
		return false;
	places_memory(f, t, d);
	for (int i = 0; i < f->proxies; i++) {
		d[f->proxy[i].info.device.ordinal].now += f->proxy[i].info.mapped;
		all += f->proxy[i].info.mapped + f->proxy[i].info.pinned;
	}
	for (int i = 0; i < SEATING_DEVICES; i++)
		if (d[i].total && d[i].now > d[i].total / 8 * 7)
			return false;
	return host_available() / 4 * 3 > all;
}
