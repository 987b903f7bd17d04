// SPDX-License-Identifier: Apache-2.0
/*
 * ps.c - `singvgpu ps`: jobs, their ranks and proxies, as a table or as JSON
 */
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "jobboard.h"
#include "watch.h"

static const char help[] =
"Usage: singvgpu ps [OPTION]...\n"
"Lists running jobs: a line for each proxy, and for each rank that has none.\n"
"\n"
"  -a, --all   jobs of all users (as root)\n"
"  -j, --json  all that is known, as JSON\n"
"      --help  print this and exit\n"
"\n"
"What jobs that were killed have left behind is removed.\n";

static const struct option longs[] = {
	{ "all", no_argument, NULL, 'a' },
	{ "json", no_argument, NULL, 'j' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

/* ------------------------------------------------------------------------------- table */

static uint64_t age(uint64_t started_ns)
{
	uint64_t now = wall_ns();

	return started_ns && now > started_ns ? (now - started_ns) / 1000000000 : 0;
}

static void row(const struct rundir_job *job, int r, const struct rundir_proxy *proxy)
{
	char state[24], mem[16] = "-", calls[16] = "-", launches[16] = "-", time[16], command[256];
	char device[128] = "-", number[32], clean[25], pid[16] = "-";
	struct why why = { 0 };
	struct uproxy_stat s;
	const char *how;

	if (proxy) {
		watch_stat(job, proxy, &s, &why);
		how = watch_proxy_state(proxy, &s);
		snprintf(pid, sizeof(pid), "%d", proxy->pid);
		show_size(mem, s.device_bytes);
		show_count(calls, s.calls);
		show_count(launches, s.launches);
		if (s.device >= 0)
			snprintf(device, sizeof(device), "%s %s", watch_device(s.device, s.logical, number), s.device_name);
	} else {
		how = watch_rank_state(&job->rank[r], state);
	}
	printf("%-8s %4d %7d %-9s %7s %-24s %7s %7s %8s %6s %s\n", job->id, r,
	       proxy ? proxy->client : job->rank[r].pid, how, pid,
	       watch_clip(clean, sizeof(clean), device), mem, calls, launches,
	       show_age(time, age(job->started_ns)),
	       watch_clip(command, sizeof(command), job->command));
	if (why.err)
		say("%s", why.text);
}

/* The job's rank whose process has pid, or -1. */
static int rank_of(const struct rundir_job *job, pid_t pid)
{
	for (int i = 0; i < job->proxies; i++)
		if (job->proxy[i].client == pid)
			return job->proxy[i].rank;
	return -1;
}

static void table_comms(const struct rundir_job *job)
{
	struct jobboard_comm *comm;
	char text[1024], clean[1024];
	size_t n;
	int err = jobboard_read(job, &comm, &n);

	if (err)
		say_errno(err, "the communicators of job %s", job->id);
	for (size_t i = 0; i < n; i++) {
		printf("%-8s communicator %08llx, %u ranks%s%s\n", job->id,
		       (unsigned long long)(comm[i].key >> 32), comm[i].ranks,
		       comm[i].stands ? "" : ", being created",
		       comm[i].ops ? ":" : "");
		for (unsigned int o = 0; o < comm[i].ops; o++) {
			jobboard_sentence(&comm[i].op[o], wall_ns(), text, sizeof(text));
			watch_clip(clean, sizeof(clean), text);
			printf("%-8s   %s\n", job->id, clean);
		}
	}
	jobboard_free(comm, n);
}

static void table(const struct rundir_job *jobs, int n)
{
	printf("%-8s %4s %7s %-9s %7s %-24s %7s %7s %8s %6s %s\n", "JOB", "RANK", "PID", "STATE",
	       "PROXY", "DEVICE", "MEMORY", "CALLS", "LAUNCHES", "AGE", "COMMAND");
	for (const struct rundir_job *job = jobs; job < jobs + n; job++) {
		if (!job->live)
			continue;
		for (int r = 0; r < job->ranks; r++) {
			bool some = false;

			for (int i = 0; i < job->proxies; i++) {
				if (job->proxy[i].rank != r)
					continue;
				row(job, r, &job->proxy[i]);
				some = true;
			}
			if (!some)
				row(job, r, NULL);
		}
		table_comms(job);
	}
}

/* -------------------------------------------------------------------------------- JSON */

/* The figures of a job's proxies, in the order of job->proxy. The caller frees them. NULL: no memory. */
static struct uproxy_stat *stats_of(const struct rundir_job *job)
{
	struct uproxy_stat *s = calloc(job->proxies + 1, sizeof(*s));

	for (int i = 0; s && i < job->proxies; i++)
		watch_stat(job, &job->proxy[i], &s[i], NULL);
	return s;
}

/* How many of the job's proxies are on the device. */
static int sharers(const struct rundir_job *job, const struct uproxy_stat *s, int device)
{
	int n = 0;

	for (int i = 0; i < job->proxies; i++)
		n += s[i].magic && s[i].device == device;
	return n;
}

/* switch_us: the last ones, the oldest first. */
static void json_slices(struct json *j, const struct uproxy_slices *s)
{
	uint64_t n = s->switches;

	json_open(j, "slices", '{');
	json_uint(j, "begun", s->begun);
	json_uint(j, "switches", n);
	json_uint(j, "switch_ns", s->switch_ns);
	json_uint(j, "drain_ns", s->drain_ns);
	json_uint(j, "bytes_digested", s->digested);
	json_uint(j, "bytes_taken", s->taken);
	json_uint(j, "bytes_brought", s->brought);
	json_uint(j, "backing", s->backing);
	json_uint(j, "backing_peak", s->backing_peak);
	json_open(j, "switch_us", '[');
	for (uint64_t i = n > UPROXY_SWITCHES ? n - UPROXY_SWITCHES : 0; i < n; i++)
		json_uint(j, NULL, s->last_us[i % UPROXY_SWITCHES]);
	json_close(j, ']');
	json_close(j, '}');
}

static void json_proxy(struct json *j, const struct rundir_job *job, int i, const struct uproxy_stat *all)
{
	const struct rundir_proxy *p = &job->proxy[i];
	const struct uproxy_stat s = all[i];

	json_open(j, NULL, '{');
	json_int(j, "pid", p->pid);
	json_int(j, "client", p->client);
	json_string(j, "state", watch_proxy_state(p, &s));
	if (s.magic) {
		json_int(j, "device", s.device);
		if (s.logical)
			json_int(j, "logical_device", s.logical - 1);
		json_int(j, "sharers", sharers(job, all, s.device));
		json_string(j, "device_name", s.device_name);
		json_int(j, "driver_version", s.driver_version);
		json_string(j, "backend", s.backend);
		json_string(j, "why", s.why);
		json_number(j, "seconds", age(s.started_ns));
		json_uint(j, "budget", s.budget);
		json_uint(j, "device_bytes", s.device_bytes);
		json_uint(j, "device_peak", s.device_peak);
		json_uint(j, "pinned_bytes", s.pinned_bytes);
		json_uint(j, "calls", s.calls);
		json_uint(j, "answered", s.answered);
		json_uint(j, "launches", s.launches);
		json_uint(j, "collectives", s.collectives);
		json_uint(j, "collectives_last", s.coll_last);
		json_uint(j, "collectives_wait_ns", s.coll_waits.ns);
		json_uint(j, "collectives_run_ns", s.coll_runs.ns);
		json_uint(j, "errors", s.errors);
		json_uint(j, "bytes_to_device", s.bytes_to_device);
		json_uint(j, "bytes_to_host", s.bytes_to_host);
		json_uint(j, "bytes_on_device", s.bytes_on_device);
		json_uint(j, "modules", s.modules);
		json_uint(j, "jit_ns", s.jit_ns);
		json_uint(j, "waits", s.waits);
		json_uint(j, "kernels_asked", s.kernels.asked);
		json_uint(j, "kernels_cached", s.kernels.cached);
		json_uint(j, "kernels_compiled", s.kernels.compiled);
		json_uint(j, "kernels_failed", s.kernels.failed);
		json_uint(j, "compile_ns", s.kernels.ns);
		json_uint(j, "images_without_ptx", s.kernels.no_ptx);
		if (s.slices.begun)
			json_slices(j, &s.slices);
	}
	json_close(j, '}');
}

static void json_rank(struct json *j, const struct rundir_job *job, int r, const struct uproxy_stat *all)
{
	const struct rundir_rank *rank = &job->rank[r];
	char state[24];

	json_open(j, NULL, '{');
	json_int(j, "rank", r);
	json_int(j, "pid", rank->pid);
	json_string(j, "state", rank->state == RANK_EXITED ? "exited" :
				rank->state == RANK_KILLED ? "killed" :
				watch_rank_state(rank, state));
	if (rank->state == RANK_EXITED)
		json_int(j, "exit_status", rank->code);
	if (rank->state == RANK_KILLED)
		json_int(j, "signal", rank->code);
	json_open(j, "proxies", '[');
	for (int i = 0; i < job->proxies; i++)
		if (job->proxy[i].rank == r)
			json_proxy(j, job, i, all);
	json_close(j, ']');
	json_close(j, '}');
}

static void json_op(struct json *j, const struct jobboard_op *op)
{
	json_open(j, NULL, '{');
	json_string(j, "kind", op->kind);
	json_string(j, "type", op->type);
	json_uint(j, "count", op->count);
	if (op->source < 0) {
		json_uint(j, "number", op->number);
	} else {
		json_int(j, "source", op->source);
		json_int(j, "destination", op->destination);
	}
	json_string(j, "state", op->started ? "started" : "posted");
	json_uint(j, "since", op->since_ns / 1000000000);
	json_uint(j, "waits", op->waits);
	json_open(j, "waits_for", '[');
	for (unsigned int i = 0; i < op->listed; i++) {
		json_open(j, NULL, '{');
		json_int(j, "rank", op->wait[i].rank);
		json_int(j, "pid", op->wait[i].pid);
		json_close(j, '}');
	}
	json_close(j, ']');
	json_close(j, '}');
}

static void json_comms(struct json *j, const struct rundir_job *job)
{
	struct jobboard_comm *comm;
	char key[24];
	size_t n;
	int err = jobboard_read(job, &comm, &n);

	if (err)
		say_errno(err, "the communicators of job %s", job->id);
	json_open(j, "communicators", '[');
	for (size_t i = 0; i < n; i++) {
		json_open(j, NULL, '{');
		snprintf(key, sizeof(key), "%016llx", (unsigned long long)comm[i].key);
		json_string(j, "key", key);
		json_string(j, "state", comm[i].stands ? "stands" : "forming");
		json_open(j, "ranks", '[');
		for (unsigned int r = 0; r < comm[i].ranks; r++) {
			json_open(j, NULL, '{');
			json_int(j, "pid", comm[i].pid[r]);
			json_int(j, "rank", rank_of(job, comm[i].pid[r]));
			json_close(j, '}');
		}
		json_close(j, ']');
		json_open(j, "operations", '[');
		for (unsigned int o = 0; o < comm[i].ops; o++)
			json_op(j, &comm[i].op[o]);
		json_close(j, ']');
		json_close(j, '}');
	}
	json_close(j, ']');
	jobboard_free(comm, n);
}

static void json_jobs(const struct rundir_job *jobs, int n)
{
	struct json j = { .out = stdout };
	struct uproxy_stat *all;

	json_open(&j, NULL, '{');
	json_int(&j, "version", 1);
	json_open(&j, "jobs", '[');
	for (const struct rundir_job *job = jobs; job < jobs + n; job++) {
		if (!job->live)
			continue;
		json_open(&j, NULL, '{');
		json_string(&j, "id", job->id);
		json_int(&j, "pid", job->pid);
		json_int(&j, "supervisor", job->supervisor);
		json_string(&j, "folder", job->path);
		json_uint(&j, "started", job->started_ns / 1000000000);
		json_number(&j, "seconds", age(job->started_ns));
		json_int(&j, "virtual_devices", job->devices);
		json_string(&j, "command", job->command);
		json_open(&j, "ranks", '[');
		all = stats_of(job);
		if (!all)
			say_errno(-ENOMEM, "the ranks of job %s", job->id);
		for (int r = 0; all && r < job->ranks; r++)
			json_rank(&j, job, r, all);
		free(all);
		json_close(&j, ']');
		json_comms(&j, job);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
}

int ps_main(int argc, char **argv)
{
	bool all = false, json = false;
	struct rundir_job *jobs;
	unsigned int left_out;
	int c, n;

	while ((c = getopt_long(argc, argv, "ajh", longs, NULL)) != -1) {
		switch (c) {
		case 'a':
			all = true;
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			return say_usage("ps", "that option is not known");
		}
	}
	if (optind != argc)
		return say_usage("ps", "'%s' is one argument too many", argv[optind]);
	signal(SIGXFSZ, SIG_IGN);	/* a limit of files may leave no room for histories */
	rundir_sweep();
	n = rundir_list(&jobs, all ? RUNDIR_ALL : RUNDIR_HERE, &left_out);
	if (n < 0) {
		say_errno(n, "the jobs cannot be listed");
		return EXIT_OURS;
	}
	if (json)
		json_jobs(jobs, n);
	else
		table(jobs, n);
	rundir_list_free(jobs, n);
	if (left_out)
		say("%u job%s not shown: %s files, which any user can write, are too many, too large or no job files",
		    left_out, left_out == 1 ? " is" : "s are", left_out == 1 ? "its" : "their");
	return 0;
}
