// SPDX-License-Identifier: Apache-2.0
/*
 * older_job.c - a small job of which checkpoints of each format are stored (older/): older_job GO [ID]
 *
 * It has what the formats describe: images whose bytes are in the log's objects, memory, a variable, streams, an
 * event, a graph, and with several ranks, which meet by the file ID, a communicator: rank 0 has posted a sum and a
 * message that the others have not, and a kernel behind them is parked. Each rank says "waits" and goes on when the
 * file GO is there.
 */
#include <cuda.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N	4096

static const char text[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .global .align 4 .u32 calls;\n"
	".visible .entry add(.param .u64 p, .param .u32 by)\n{\n"
	"\t.reg .u32 %r<8>;\n\t.reg .u64 %rd<4>;\n\t.reg .pred %p;\n"
	"\tmov.u32 %r1, %ctaid.x;\n\tmov.u32 %r2, %ntid.x;\n\tmov.u32 %r3, %tid.x;\n"
	"\tmad.lo.u32 %r4, %r1, %r2, %r3;\n"
	"\tld.param.u64 %rd1, [p];\n\tld.param.u32 %r5, [by];\n"
	"\tmul.wide.u32 %rd2, %r4, 4;\n\tadd.u64 %rd3, %rd1, %rd2;\n"
	"\tld.global.u32 %r6, [%rd3];\n\tadd.u32 %r6, %r6, %r5;\n\tst.global.u32 [%rd3], %r6;\n"
	"\tsetp.ne.u32 %p, %r4, 0;\n\t@%p bra END;\n"
	"\tatom.global.add.u32 %r7, [calls], 1;\nEND:\n\tret;\n}\n";

static int rank, ranks = 1;

#define OK(x) \
	do { \
		int r_ = (x); \
		if (r_) { \
			printf("rank %d: line %d: %s is %d\n", rank, __LINE__, #x, r_); \
			exit(1); \
		} \
	} while (0)

static CUfunction add;
static CUdeviceptr mem, sum, word;
static CUstream stream;
static CUgraphExec graph;
static CUevent event;
static ncclComm_t comm;

static void launch(CUstream s, uint32_t by)
{
	void *args[] = { &mem, &by };

	OK(cuLaunchKernel(add, N / 256, 1, 1, 256, 1, 1, 0, s, args, NULL));
}

static void make_objects(void)
{
	char *image = strdup(text);	/* of no file */
	static uint32_t values[N];
	CUmodule module;
	size_t size;
	CUgraph g;

	OK(cuModuleLoadData(&module, image));
	free(image);
	OK(cuModuleGetFunction(&add, module, "add"));
	OK(cuModuleGetGlobal(&word, &size, module, "calls"));
	OK(cuMemAlloc(&mem, sizeof(values)));
	OK(cuMemAlloc(&sum, sizeof(values)));
	for (uint32_t i = 0; i < N; i++)
		values[i] = i + rank;
	OK(cuMemcpyHtoD(mem, values, sizeof(values)));
	OK(cuMemsetD32(sum, 0, N));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	launch(stream, 10);
	launch(stream, 100);
	OK(cuStreamEndCapture(stream, &g));
	OK(cuGraphInstantiateWithFlags(&graph, g, 0));
	OK(cuGraphLaunch(graph, stream));
	OK(cuEventRecord(event, stream));
	OK(cuStreamSynchronize(stream));
}

static void meet(const char *path)
{
	char fresh[4096];
	ncclUniqueId id;
	FILE *f = NULL;

	snprintf(fresh, sizeof(fresh), "%s.new", path);
	if (!rank) {
		OK(ncclGetUniqueId(&id));
		f = fopen(fresh, "w");
		OK(!f || fwrite(&id, sizeof(id), 1, f) != 1 || fclose(f) || rename(fresh, path));
	} else {
		while (!(f = fopen(path, "r")))
			usleep(10000);
		OK(fread(&id, sizeof(id), 1, f) != 1);
		fclose(f);
	}
	OK(ncclCommInitRank(&comm, ranks, id, rank));
}

static void exchange(void)
{
	OK(ncclAllReduce((void *)mem, (void *)sum, N, ncclUint32, ncclSum, comm, (void *)stream));
	OK(rank ? ncclRecv((void *)sum, 16, ncclUint32, 0, comm, (void *)stream) :
		  ncclSend((void *)mem, 16, ncclUint32, 1, comm, (void *)stream));
	launch(stream, 1000);
}

static uint32_t at(CUdeviceptr p, int i)
{
	uint32_t v;

	OK(cuMemcpyDtoH(&v, p + 4 * i, 4));
	return v;
}

int main(int argc, char **argv)
{
	CUcontext ctx;
	CUdevice dev;
	int n;

	if (argc < 2)
		return 2;
	rank = getenv("RANK") ? atoi(getenv("RANK")) : 0;
	ranks = argc > 2 ? atoi(getenv("WORLD_SIZE")) : 1;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	OK(cuDeviceGet(&dev, rank % n));
	OK(cuDevicePrimaryCtxRetain(&ctx, dev));
	OK(cuCtxSetCurrent(ctx));
	make_objects();
	if (ranks > 1)
		meet(argv[2]);
	if (ranks > 1 && !rank)
		exchange();
	printf("waits %d\n", rank);
	fflush(stdout);
	while (access(argv[1], F_OK))
		usleep(10000);
	if (ranks > 1 && rank)
		exchange();
	OK(cuStreamSynchronize(stream));
	OK(cuGraphLaunch(graph, stream));
	OK(cuStreamSynchronize(stream));
	printf("rank %d: %u %u %u %u %u calls\n", rank, at(mem, 0), at(mem, N - 1), at(sum, 0), at(sum, N - 1),
	       at(word, 0));
	return 0;
}
