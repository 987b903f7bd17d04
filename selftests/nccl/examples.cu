// SPDX-License-Identifier: Apache-2.0
/*
 * examples.cu - how programs usually set NCCL up: examples FILE HOW
 *
 * process: a device for each process, the id by a file. inits: several devices of a process, each
 * communicator by a call of its own in one group. all: ncclCommInitAll, and collectives of all devices in a group.
 * threads: a thread for each device. both: two processes with two devices each. nonblocking: with a
 * configuration, and its state asked. pairs: exchanges of all with all, a ring, a halo, by sends and receives.
 */
#include "ranks.h"

#include <thread>
#include <vector>

#define N (1 << 16)

__global__ void fill(float *p, float v)
{
	p[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

/* One device's part of a program. */
struct part {
	int device, rank;
	ncclComm_t comm;
	cudaStream_t st;
	float *send, *recv;
};

static void begin_part(part &p, int device, int number)
{
	p.device = device;
	p.rank = number;
	OK(cudaSetDevice(device));
	OK(cudaStreamCreate(&p.st));
	OK(cudaMalloc(&p.send, N * sizeof(float)));
	OK(cudaMalloc(&p.recv, N * sizeof(float)));
	fill<<<N / 256, 256, 0, p.st>>>(p.send, number + 1);
	OK(cudaGetLastError());
}

static void check_part(part &p, const float *at, float want)
{
	std::vector<float> v(N);

	OK(cudaSetDevice(p.device));
	OK(cudaMemcpyAsync(v.data(), at, N * sizeof(float), cudaMemcpyDeviceToHost, p.st));
	OK(cudaStreamSynchronize(p.st));
	for (float x : v)
		IS(x, want);
}

static void end_part(part &p)
{
	OK(cudaSetDevice(p.device));
	OK(cudaFree(p.send));
	OK(cudaFree(p.recv));
	OK(ncclCommDestroy(p.comm));
	OK(cudaStreamDestroy(p.st));
}

/* All-reduce, broadcast from the last one and reduction to it, of parts that are one thread's. */
static void collectives(std::vector<part> &parts, int all)
{
	for (int k = 0; k < 10; k++) {
		OK(ncclGroupStart());
		for (part &p : parts)
			OK(ncclAllReduce(p.send, p.recv, N, ncclFloat, ncclSum, p.comm, p.st));
		OK(ncclGroupEnd());
	}
	for (part &p : parts)
		check_part(p, p.recv, all * (all + 1) / 2);
	OK(ncclGroupStart());
	for (part &p : parts)
		OK(ncclBroadcast(p.send, p.recv, N, ncclFloat, all - 1, p.comm, p.st));
	OK(ncclGroupEnd());
	for (part &p : parts)
		check_part(p, p.recv, all);
	OK(ncclGroupStart());
	for (part &p : parts)
		OK(ncclReduce(p.send, p.recv, N, ncclFloat, ncclMax, all - 1, p.comm, p.st));
	OK(ncclGroupEnd());
	for (part &p : parts)
		check_part(p, p.recv, all);
}

static void process(void)
{
	std::vector<part> parts(1);
	ncclUniqueId id = shared_id(0);

	begin_part(parts[0], rank, rank);
	OK(ncclCommInitRank(&parts[0].comm, ranks, id, rank));
	collectives(parts, ranks);
	end_part(parts[0]);
}

/* Processes with several devices: the first number of this one's, and how many there are in all. */
static void several(int devices, int first, int all)
{
	std::vector<part> parts(devices);
	ncclUniqueId id = shared_id(0);

	for (int i = 0; i < devices; i++)
		begin_part(parts[i], i, first + i);
	OK(ncclGroupStart());
	for (int i = 0; i < devices; i++) {
		OK(cudaSetDevice(i));
		OK(ncclCommInitRank(&parts[i].comm, all, id, first + i));
	}
	OK(ncclGroupEnd());
	collectives(parts, all);
	for (part &p : parts)
		end_part(p);
}

static int devices(void)
{
	int n;

	OK(cudaGetDeviceCount(&n));
	return n;
}

static void inits(void)
{
	several(devices(), 0, devices());
}

static void both(void)
{
	several(devices() / 2, rank * (devices() / 2), ranks * (devices() / 2));
}

static void all(void)
{
	int n = devices();
	std::vector<part> parts(n);
	std::vector<ncclComm_t> comm(n);

	for (int i = 0; i < n; i++)
		begin_part(parts[i], i, i);
	OK(ncclCommInitAll(comm.data(), n, NULL));
	for (int i = 0; i < n; i++)
		parts[i].comm = comm[i];
	collectives(parts, n);
	for (part &p : parts)
		end_part(p);
}

static void threads(void)
{
	int n = devices();
	ncclUniqueId id = shared_id(0);
	std::vector<std::thread> running;

	for (int i = 0; i < n; i++)
		running.emplace_back([=] {
			std::vector<part> parts(1);

			begin_part(parts[0], i, i);
			OK(ncclCommInitRank(&parts[0].comm, n, id, i));
			collectives(parts, n);
			/* without a group, and with waits of the host in between */
			for (int k = 0; k < 20; k++) {
				part &p = parts[0];

				OK(ncclAllReduce(p.send, p.recv, N, ncclFloat, ncclSum, p.comm, p.st));
				if (k % 5 == i)
					check_part(p, p.recv, n * (n + 1) / 2);
			}
			end_part(parts[0]);
		});
	for (std::thread &t : running)
		t.join();
}

static void nonblocking(void)
{
	std::vector<part> parts(1);
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id = shared_id(0);
	ncclResult_t state;

	config.blocking = 0;
	begin_part(parts[0], rank, rank);
	state = ncclCommInitRankConfig(&parts[0].comm, ranks, id, rank, &config);
	IS(state == ncclSuccess || state == ncclInProgress, 1);
	do {
		OK(ncclCommGetAsyncError(parts[0].comm, &state));
	} while (state == ncclInProgress);
	OK(state);
	collectives(parts, ranks);
	state = ncclCommFinalize(parts[0].comm);
	IS(state == ncclSuccess || state == ncclInProgress, 1);
	do {
		OK(ncclCommGetAsyncError(parts[0].comm, &state));
	} while (state == ncclInProgress);
	OK(state);
	end_part(parts[0]);
}

static void pairs(void)
{
	part p;
	ncclUniqueId id = shared_id(0);
	int per = N / ranks, left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
	std::vector<float> v(N);

	begin_part(p, rank, rank);
	OK(ncclCommInitRank(&p.comm, ranks, id, rank));
	OK(ncclGroupStart());			/* all to all */
	for (int r = 0; r < ranks; r++) {
		OK(ncclSend(p.send + r * per, per, ncclFloat, r, p.comm, p.st));
		OK(ncclRecv(p.recv + r * per, per, ncclFloat, r, p.comm, p.st));
	}
	OK(ncclGroupEnd());
	OK(cudaMemcpyAsync(v.data(), p.recv, N * sizeof(float), cudaMemcpyDeviceToHost, p.st));
	OK(cudaStreamSynchronize(p.st));
	for (int i = 0; i < ranks * per; i++)
		IS(v[i], i / per + 1);
	for (int k = 0; k < ranks; k++) {	/* a ring: after as many steps each has its own again */
		OK(ncclGroupStart());
		OK(ncclSend(p.send, N, ncclFloat, right, p.comm, p.st));
		OK(ncclRecv(p.recv, N, ncclFloat, left, p.comm, p.st));
		OK(ncclGroupEnd());
		OK(cudaMemcpyAsync(p.send, p.recv, N * sizeof(float), cudaMemcpyDeviceToDevice, p.st));
	}
	check_part(p, p.send, rank + 1);
	OK(ncclGroupStart());			/* borders of neighbours, both ways; with two ranks they are one */
	OK(ncclSend(p.send, 16, ncclFloat, left, p.comm, p.st));
	OK(ncclSend(p.send + N - 16, 16, ncclFloat, right, p.comm, p.st));
	OK(ncclRecv(p.recv, 16, ncclFloat, right, p.comm, p.st));
	OK(ncclRecv(p.recv + 16, 16, ncclFloat, left, p.comm, p.st));
	OK(ncclGroupEnd());
	OK(cudaMemcpyAsync(v.data(), p.recv, 32 * sizeof(float), cudaMemcpyDeviceToHost, p.st));
	OK(cudaStreamSynchronize(p.st));
	for (int i = 0; i < 32; i++)
		IS(v[i], (i < 16 ? right : left) + 1);
	end_part(p);
}

static const struct {
	const char *name;
	void (*fn)(void);
} how[] = {
	{ "process", process }, { "inits", inits }, { "all", all }, { "threads", threads },
	{ "both", both }, { "nonblocking", nonblocking }, { "pairs", pairs },
};

int main(int argc, char **argv)
{
	begin(argc, argv);
	for (auto &h : how)
		if (argc == 3 && !strcmp(argv[2], h.name)) {
			h.fn();
			return 0;
		}
	return 2;
}
