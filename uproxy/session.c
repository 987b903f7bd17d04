// SPDX-License-Identifier: Apache-2.0
/*
 * session.c - opens a client's session, and fills in sv_shared
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include "common.h"
#include "control.h"
#include "crowd.h"
#include "device_memory.h"
#include "log.h"
#include "print.h"
#include "session.h"
#include "stat.h"
#include "streams.h"

#define ARENA_MAX	(64ull << 30)
#define ARENA_MIN	(64ull << 20)
#define OUT_SIZE	(4ull << 20)	/* output between two synchronisations */
#define ERR_SIZE	(1ull << 20)
#define ARENA_FIRST	(8ull << 20)

_Static_assert(sizeof(struct sv_shared) + OUT_SIZE + ERR_SIZE <= ARENA_FIRST, "our arena part");

/* ------------------------------------------------------------------------------ channel */

static uint64_t address_limit(void)
{
	struct rlimit r;

	return getrlimit(RLIMIT_AS, &r) || r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

/* An arena for as much pinned memory as this host can have at all. */
static uint64_t arena_most(void)
{
	struct sysinfo i;
	uint64_t bytes = ARENA_MAX;

	if (!sysinfo(&i))
		bytes = ((uint64_t)i.totalram + i.totalswap) * i.mem_unit;
	bytes = (bytes + ARENA_MIN - 1) & -ARENA_MIN;
	return bytes < ARENA_MAX ? bytes : ARENA_MAX;
}

static int open_channel(struct sv_session *s, enum ring_backend backend, const struct sv_connect *con,
			struct why *why)
{
	struct ring_params p = { .backend = backend };
	uint64_t va = con->others ? con->channel : RING_VA_BASE;
	int rc = -ENOMEM;

	if (getrandom(p.id, sizeof(p.id), 0) != sizeof(p.id) ||
	    getrandom(p.cookie, sizeof(p.cookie), 0) != sizeof(p.cookie))
		return why_set(why, -EIO, "no random numbers");
	p.geo = (struct singvgpu_geometry){ .arena_len = con->others ? ARENA_FIRST : arena_most(),
					    .log_len = 16 << 20, .ring_units = 4096,
					    .cpl_slots = 1024 };
	while (p.geo.arena_len > address_limit() / 4 && p.geo.arena_len > ARENA_MIN)
		p.geo.arena_len /= 2;
	for (int tries = 0; tries < 32; tries++) {
		p.geo.va = va;
		rc = ring_create(&s->ring, &p);
		if (rc == -EEXIST && !con->others)
			va += ARENA_MAX * 2;
		else if (rc && p.geo.arena_len > ARENA_MIN && rc != -EACCES && rc != -ENODEV)
			p.geo.arena_len /= 2;
		else
			break;
	}
	if (rc)
		why_set(why, rc, "cannot create a channel: %s%s", ring_strerror(rc), rc == -EFBIG ?
			" (ulimit -Hf: the hard limit of file sizes has to be lifted)" : "");
	return rc;
}

const char *session_backend(const struct sv_session *s)
{
	return ring_backend(s->ring) == RING_KMOD ? "kmod" : "memfd";
}

static int map_home(struct sv_session *s, int home, void **arena, struct why *why)
{
	int rc = ring_map_arena(home, &s->home);

	*arena = s->home.arena;
	s->arena_len = s->home.len;
	if (!rc && s->arena_len <= s->arena_first)
		rc = -EPROTO;
	if (rc == -EPROTONOSUPPORT)
		return why_set(why, rc, "a process on several devices needs --backend memfd, or the "
			       "kernel module of this version: %s", ring_strerror(rc));
	return rc ? why_set(why, rc, "the process's arena cannot be used: %s", ring_strerror(rc)) : 0;
}

int session_arena(struct sv_session *s, int home, struct why *why)
{
	void *arena = ring_arena(s->ring);
	int rc = 0;

	s->shared = arena;
	s->arena_len = ring_geometry(s->ring)->arena_len;
	s->arena_first = ARENA_FIRST;
	s->guest = home >= 0;
	if (s->guest)
		rc = map_home(s, home, &arena, why);
	if (rc)
		return rc;
	s->arena = arena;
	hostfunc_begin(s);
	snprintf(s->stat->backend, sizeof(s->stat->backend), "%s", session_backend(s));
	return why_text(why, window_init(s), "");
}

/* ------------------------------------------------------------------------------ sv_shared */

void session_describe(struct hal *h, int i, struct sv_device *d)
{
	CUuuid uuid = { 0 };
	size_t total = 0;

	h->drv.cuDeviceGetName(d->name, sizeof(d->name), i);
	if (h->drv.cuDeviceGetUuid_v2 ? !h->drv.cuDeviceGetUuid_v2(&uuid, i) :
	    h->drv.cuDeviceGetUuid && !h->drv.cuDeviceGetUuid(&uuid, i))
		memcpy(d->uuid, &uuid, sizeof(d->uuid));
	if (h->drv.cuDeviceGetLuid)
		d->luid_ok = !h->drv.cuDeviceGetLuid((char *)d->luid, &d->luid_mask, i);
	if (h->drv.cuDeviceTotalMem_v2)
		h->drv.cuDeviceTotalMem_v2(&total, i);
	d->total_mem = total;
	if (h->drv.cuDeviceGetPCIBusId)
		h->drv.cuDeviceGetPCIBusId(d->pci_bus_id, sizeof(d->pci_bus_id), i);
	for (int a = 1; a < SV_ATTRS_MAX; a++)
		d->attr_ok[a] = !h->drv.cuDeviceGetAttribute(&d->attr[a], a, i);
}

/*
 * The ranks that share a device have equal parts of all of it, so that their budgets add up to what it has; who comes later
 * may find less. One that has it alone gets what is free.
 */
static uint64_t grant(struct sv_session *s, const struct session_options *o)
{
	uint32_t sharers = o->sharers[s->hal.dev];
	uint64_t asked = o->budget;
	size_t free = 0, total = 0;
	uint64_t spare, most;

	if (asked)
		return asked & ~(SV_GRANULE - 1);
	if (!s->hal.drv.cuMemGetInfo_v2 || s->hal.drv.cuMemGetInfo_v2(&free, &total))
		return 0;
	spare = ctl_spare(free);
	most = free - spare;
	if (sharers > 1 && (total - spare) / sharers < most)
		most = (total - spare) / sharers;
	return most & ~(SV_GRANULE - 1);
}

/*
 * What the device's sharers may have of it: all but what is spare, of which each further one needs some for its contexts if they take
 * turns (`slices`). Each computes the same.
 */
static uint64_t of_all(struct sv_session *s, const struct session_options *o, bool slices)
{
	uint64_t sharers = o->sharers[s->hal.dev], more = 0, budget = o->budget;
	size_t free = 0, total = 0;

	if (!budget && s->hal.drv.cuMemGetInfo_v2 && !s->hal.drv.cuMemGetInfo_v2(&free, &total)) {
		if (slices && sharers > 1)
			more = (sharers - 1) * (ctl_spare(total) / 4);
		budget = total - ctl_spare(total);
		budget -= more < budget / 2 ? more : budget / 2;
	}
	if (budget > s->hal.window_len)
		budget = s->hal.window_len;
	return budget & ~(SV_GRANULE - 1);
}

/* May the ranks that share the device be moved to slices when it is full? */
static bool may_move(const struct sv_session *s, const struct session_options *o)
{
	uint32_t sharers = o->sharers[s->hal.dev];

	return o->whole && !o->budget && sharers > 1 && sharers <= COMMON_SHARERS && s->hal.own_memory;
}

int session_shares(struct sv_session *s, const struct session_options *o, struct why *why)
{
	bool slices = o->slices[s->hal.dev];
	uint64_t all = of_all(s, o, slices);
	int rc = 0;

	if (slices)
		rc = common_open(&s->hal, o->slices[s->hal.dev], all);
	else if (!may_move(s, o) || crowd_limit(s->hal.dev, all))
		return 0;
	s->budget = all;
	return why_text(why, rc, "");
}

/* The driver's device of a number of the client's. */
static int physical(const struct session_options *o, int logical)
{
	return o->mapped ? o->map[logical] : logical;
}

/* The one that describes it. A job from another host may have devices that are not here, and no session on them. */
static int described_by(const struct sv_session *s, const struct session_options *o, int logical)
{
	int n = physical(o, logical);

	return o->mapped && n >= s->hal.devices && s->hal.devices ? s->hal.dev : n;
}

static void fill_shared(struct sv_session *s, const struct session_options *o, int logical)
{
	struct sv_shared *sh = s->shared;
	struct hal *h = &s->hal;

	sh->version = SV_PROTO_VERSION;
	sh->size = sizeof(*sh);
	sh->driver_version = h->version;
	sh->window = h->window;
	/* By slices an address is a place in the memory that the sharers have in common. */
	sh->window_len = common_on ? s->budget : h->window_len;
	sh->budget = s->budget;
	sh->arena_first = s->arena_first;
	sh->devices = h->devices < SV_DEVICES_MAX ? h->devices : SV_DEVICES_MAX;
	if (o->devices)
		sh->devices = o->devices;
	if (sh->devices <= (uint32_t)logical)
		sh->devices = logical + 1;
	sh->device = logical;
	if (h->drv.cuCtxGetStreamPriorityRange)
		h->drv.cuCtxGetStreamPriorityRange(&sh->priority_least, &sh->priority_greatest);
	for (int i = 0; i < 16; i++) {
		size_t v = 0;

		if (h->drv.cuCtxGetLimit && !h->drv.cuCtxGetLimit(&v, i))
			sh->limit[i] = v;
	}
	for (uint32_t i = 0; i < sh->devices; i++)
		session_describe(h, described_by(s, o, i), &sh->dev[i]);
	__atomic_store_n(&sh->magic, SV_SHARED_MAGIC, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------------------ open */

static int check_connect(const struct sv_connect *con, struct why *why)
{
	if (con->magic != SV_CONNECT_MAGIC)
		return why_set(why, -EPROTO, "the peer is no client of singvgpu");
	if (con->version != SV_PROTO_VERSION)
		return why_set(why, -EPROTONOSUPPORT, "the client speaks version %u of the protocol, the "
			       "proxy %u", con->version, SV_PROTO_VERSION);
	if (con->device < -1 || con->device >= SV_DEVICES_MAX)
		return why_set(why, -EINVAL, "there is no device %d", con->device);
	if (con->pad || con->others > SV_DEVICES_MAX || (!con->others && con->channel))
		return why_set(why, -EPROTO, "the client's other sessions contradict each other");
	for (uint32_t i = 0; i < con->others; i++)
		if (!sv_window_valid(&con->taken[i]))
			return why_set(why, -EPROTO, "a window of the client is no window");
	return 0;
}

/*
 * No document says which addresses NVIDIA's driver reserves. The later windows are for a driver that
 * has something at the first ones, or reserves less. The shortest still exceeds an H200's memory.
 */
static const struct sv_window usual_windows[] = {
	{ SV_WINDOW_BASE, SV_WINDOW_LEN },
	{ 0x300000000000, SV_WINDOW_LEN },
	{ 0x400000000000, SV_WINDOW_LEN },
	{ 0x280000000000, 512ull << 30 },
	{ 0x380000000000, 512ull << 30 },
	{ SV_WINDOW_BASE, 256ull << 30 },
	{ 0x600000000000, 256ull << 30 },
};
#define USUAL_WINDOWS	((int)(sizeof(usual_windows) / sizeof(*usual_windows)))
#define WINDOW_LEAST	(4ull << 30)
#define CANDIDATES_MAX	(SV_DEVICES_MAX + SV_WINDOWS_MAX)

static bool is_taken(const struct sv_connect *con, const struct sv_window *w)
{
	for (uint32_t i = 0; i < con->others; i++)
		if (w->base < con->taken[i].base + con->taken[i].len &&
		    con->taken[i].base < w->base + w->len)
			return true;
	return false;
}

/*
 * The windows to try, in turn: those asked for, and, for a process that has others, those behind the
 * first one at multiples of its length. Returns their number; the taken ones are left out.
 */
static int candidates(const struct session_options *o, const struct sv_connect *con,
		      struct sv_window to[CANDIDATES_MAX])
{
	const struct sv_window *asked = o->windows ? o->window : usual_windows;
	int n = o->windows ? o->windows : USUAL_WINDOWS, found = 0;

	for (int i = 0; i < n + (int)con->others; i++) {
		struct sv_window w = asked[i < n ? i : 0];

		while (w.len > address_limit() / 4 && w.len > WINDOW_LEAST)
			w.len = w.len / 2 & ~(SV_GRANULE - 1);
		if (i >= n)
			w.base += (i - n + 1) * w.len;
		if (sv_window_valid(&w) && !is_taken(con, &w))
			to[found++] = w;
	}
	return found;
}

static int try_windows(struct sv_session *s, const struct sv_window *w, int n, struct why *why)
{
	int rc = -EADDRNOTAVAIL;

	for (int i = 0; i < n && rc; i++) {
		why_clear(why);
		rc = hal_window(&s->hal, w[i].base, w[i].len, why);
	}
	return rc;
}

/* Wherever the driver likes. A restore needs the same place. */
static int window_anywhere(struct sv_session *s, uint64_t len, struct why *why)
{
	int rc = -EADDRNOTAVAIL;

	for (; len >= WINDOW_LEAST && rc; len = len / 4 & ~(SV_GRANULE - 1)) {
		why_clear(why);
		rc = hal_window(&s->hal, 0, len, why);
	}
	if (!rc && s->hal.window % SV_GRANULE)
		return why_set(why, -EADDRNOTAVAIL, "the driver's window at 0x%llx is not at a multiple "
			       "of %llu MiB", (unsigned long long)s->hal.window, SV_GRANULE >> 20);
	if (!rc && log_verbose())
		uproxy_say("the driver has chosen the device window: 0x%llx, %llu GiB; a restore needs "
			   "the same", (unsigned long long)s->hal.window,
			   (unsigned long long)s->hal.window_len >> 30);
	return rc;
}

int uproxy_session_device(struct sv_session *s, const struct session_options *o,
			  const struct sv_window *w, int n, bool anywhere, int device, struct why *why)
{
	int rc, started;

	lock_init(&s->error_lock, PROXY_ERROR);
	rc = hal_open(&s->hal, o->driver, w->base, w->len, why);
	if (rc)
		return rc;
	if (s->hal.count_kernels)
		s->hal.count_kernels(&s->stat->kernels);
	rc = try_windows(s, w, n, why);
	started = hal_start(&s->hal, device, why);
	if (started)
		return started;
	/* Some drivers reserve addresses for a context alone. */
	if (rc)
		rc = try_windows(s, w, n, why);
	if (rc && anywhere)
		rc = window_anywhere(s, w->len, why);
	if (!rc)
		hal_notify_start(&s->hal);
	return rc;
}

bool addresses_random(void)
{
	int persona = personality(0xffffffff);

	return persona >= 0 && !(persona & ADDR_NO_RANDOMIZE);
}

int session_print(struct sv_session *s, bool restored, struct why *why)
{
	int rc = print_init(s, ARENA_FIRST - OUT_SIZE - ERR_SIZE, OUT_SIZE, ARENA_FIRST - ERR_SIZE,
			    ERR_SIZE, restored);

	return rc ? why_set(why, rc, "cannot redirect what kernels print: %s", strerror(-rc)) : 0;
}

int uproxy_session_open(struct sv_session *s, const struct session_options *o,
			const struct sv_connect *con, int home, struct why *why)
{
	int rc = check_connect(con, why), n, logical = con->device < 0 ? o->device : con->device;
	struct sv_window w[CANDIDATES_MAX];

	if (rc)
		return rc;
	n = candidates(o, con, w);
	if (!n)
		return why_set(why, -EADDRNOTAVAIL, "all places for another device window are taken");
	rc = uproxy_session_device(s, o, w, n, !o->windows && !con->others,
				   physical(o, logical), why);
	if (!rc)
		rc = open_channel(s, o->backend, con, why);
	if (rc)
		return rc;
	rc = session_arena(s, home, why);
	if (rc)
		return rc;
	rc = session_shares(s, o, why);
	if (rc)
		return rc;
	if (!common_on && !crowd_on)
		s->budget = grant(s, o);
	fill_shared(s, o, logical);
	return session_print(s, false, why);
}
