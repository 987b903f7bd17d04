// SPDX-License-Identifier: Apache-2.0
/*
 * kernels.c - tells the user what the job's proxies compile, from the figures that they show
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "tool_i.h"
#include "watch.h"

#define LOOK_MS		500	/* while a terminal has no line */
#define LINE_MS		200	/* while it has one */
#define PATIENCE_NS	1000000000ull	/* of compiling, before there is a line */
#define LINGER_MS	2000	/* that the line stays when nothing is compiled */

void kernels_start(struct kernels *k)
{
	memset(k, 0, sizeof(*k));
	k->terminal = isatty(STDERR_FILENO);
}

static void add(struct uproxy_kernels *sum, const struct uproxy_kernels *one)
{
	sum->asked += one->asked;
	sum->cached += one->cached;
	sum->compiled += one->compiled;
	sum->kept += one->kept;
	sum->failed += one->failed;
	sum->ns += one->ns;
	sum->no_ptx += one->no_ptx;
	if (one->since && (!sum->since || one->since < sum->since))
		sum->since = one->since;
}

/* Cuts the line off at the terminal's width of old, so that it can be removed. */
static void put(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *fmt, ...)
{
	char line[80];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof(line))
		n = sizeof(line) - 1;
	say_picture(line, n);
}

void kernels_clear(struct kernels *k)
{
	if (k->shown)
		put("\r\033[K");
	k->shown = false;
}

/* With a pause between two kernels the line stays: most are compiled one by one, as they are launched. */
static void show(struct kernels *k, const struct uproxy_kernels *all, uint64_t now)
{
	uint64_t ns = all->ns + (all->since && all->since < now * 1000000 ?
				 now * 1000000 - all->since : 0);

	if (all->since || all->compiled != k->before)
		k->moved = now;
	k->before = all->compiled;
	if (!k->moved || now - k->moved > LINGER_MS) {
		kernels_clear(k);
	} else if (ns >= PATIENCE_NS) {
		put("\r\033[Ksingvgpu: compiling kernels: %llu of %llu, %llu s",
		    (unsigned long long)all->compiled,
		    (unsigned long long)(all->asked - all->cached), (unsigned long long)(ns / 1000000000));
		k->shown = true;
	}
}

int kernels_step(struct kernels *k, const struct rundir_job *job)
{
	struct uproxy_kernels all = k->ended;
	uint64_t now = now_ms();
	struct uproxy_stat s;

	if (!k->terminal || !job->proxies) {
		kernels_clear(k);
		return -1;
	}
	if (now < k->next)
		return k->next - now;
	for (int i = 0; i < job->proxies; i++)
		if (!watch_stat(job, &job->proxy[i], &s, NULL))
			add(&all, &s.kernels);
	show(k, &all, now);
	k->next = now + (k->shown ? LINE_MS : LOOK_MS);
	return k->next - now;
}

void kernels_ended(struct kernels *k, const struct rundir_job *job, const struct rundir_proxy *p)
{
	struct uproxy_stat s;

	if (watch_stat(job, p, &s, NULL))
		return;
	s.kernels.since = 0;
	add(&k->ended, &s.kernels);
	k->launches += s.launches;
	k->collectives += s.collectives;
}

void kernels_look(struct kernels *k, const struct rundir_job *job)
{
	char *text = NULL;
	size_t len;

	if (!rundir_read(job->path, job->uid, "idle", &text, &len)) {
		text[strcspn(text, "\n")] = 0;
		watch_clip(k->idle, sizeof(k->idle), text);
		free(text);
	}
	if (!rundir_read(job->path, job->uid, "files", &text, &len)) {
		k->triton = memmem(text, len, ".ttir", sizeof(".ttir"));	/* a path's end */
		free(text);
	}
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static void report_warm(const struct uproxy_kernels *n)
{
	unsigned long long lost = n->compiled - n->kept;

	say("%llu kernel%s compiled in %.1f s and kept, %llu found in the cache%s",
	    (unsigned long long)n->kept, plural(n->kept), n->ns / 1e9,
	    (unsigned long long)n->cached, n->asked ? "" : ": the command launched none on the soft device");
	if (lost)
		say("%llu kernel%s could not be written to the cache: SINGVGPU_LOG=1 says why", lost,
		    plural(lost));
}

void kernels_report(const struct kernels *k, int status, bool warm)
{
	const struct uproxy_kernels *n = &k->ended;

	if (warm)
		report_warm(n);
	if (n->no_ptx && (status || (!k->launches && !k->collectives)))
		say("%llu image%s held no PTX, only machine code, which the soft device cannot run "
		    "(\"no kernel image\"): use a build with PTX (nvcc -gencode "
		    "arch=compute_90,code=compute_90; of PyTorch Debian's python3-torch-cuda, not "
		    "PyPI's wheels; of cuDNN 9.27 or older), or a GPU", (unsigned long long)n->no_ptx, plural(n->no_ptx));
	if (n->failed && (warm || status))
		say("%llu kernel%s could not be compiled: SINGVGPU_LOG=1 names them and the opcodes that "
		    "the soft device lacks", (unsigned long long)n->failed, plural(n->failed));
	if (k->triton && status)
		say("Triton's compiler knows no architecture of the soft device and gives some kernels up "
		    "(\"Cannot select\"): TORCHDYNAMO_DISABLE=1 runs a program without torch.compile; "
		    "kernels written in Triton may need a GPU");
	if (*k->idle && !k->launches && !k->collectives && !n->no_ptx && !status)
		say("%s loaded CUDA's runtime and launched no kernel: it may have used the CPU. Its own "
		    "messages say why, if a library was missing or too old; with JAX_PLATFORMS=cuda JAX "
		    "fails instead", k->idle);
}
