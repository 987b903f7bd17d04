// SPDX-License-Identifier: Apache-2.0
/*
 * managed.cu - managed memory: host and device use the same pointers in turn.
 */
#include "../job.cuh"

#include <cuda.h>

__managed__ int counter = 5;
__managed__ double table[256];

struct node {
	node *left, *right;
	int key;
	long long sum;
};

__global__ void sums(node *n)
{
	if (threadIdx.x)
		return;
	/* post-order by hand: each node gets the sum of its tree */
	node *stack[64], *last = NULL;
	int top = 0;

	while (top || n) {
		if (n) {
			stack[top++] = n;
			n = n->left;
			continue;
		}
		node *p = stack[top - 1];

		if (p->right && p->right != last) {
			n = p->right;
			continue;
		}
		p->sum = p->key + (p->left ? p->left->sum : 0) + (p->right ? p->right->sum : 0);
		last = p;
		top--;
	}
	counter++;
}

__global__ void squares(double *t)
{
	t[threadIdx.x] *= t[threadIdx.x];
	table[threadIdx.x] += t[threadIdx.x];
}

__global__ void increment(unsigned int *p, size_t n)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i]++;
}

static long long check(const node *n)
{
	if (!n)
		return 0;
	long long s = n->key + check(n->left) + check(n->right);

	EXPECT_EQ(n->sum, s);
	return s;
}

/* A tree made by the host of single allocations, walked by the device, and by the host again. */
static void tree(void)
{
	std::vector<node *> all;
	node *root = NULL;
	unsigned int seed = 1;

	for (int i = 0; i < 1000; i++) {
		node *n, **at = &root;

		CHECK(cudaMallocManaged(&n, sizeof(*n)));
		n->left = n->right = NULL;
		n->key = rnd(&seed);
		n->sum = -1;
		while (*at)
			at = n->key < (*at)->key ? &(*at)->left : &(*at)->right;
		*at = n;
		all.push_back(n);
	}
	sums<<<1, 32>>>(root);
	CHECK(cudaDeviceSynchronize());
	long long s = check(root);

	sum_bytes(&s, sizeof(s));
	EXPECT_EQ(counter, 6);
	counter = 10;
	sums<<<1, 32>>>(root);
	CHECK(cudaDeviceSynchronize());
	EXPECT_EQ(counter, 11);
	for (node *n : all)
		CHECK(cudaFree(n));
}

static void in_turn(void)
{
	const size_t n = 3 << 20;
	unsigned int *p;
	cudaStream_t s;
	cudaPointerAttributes a;

	CHECK(cudaMallocManaged(&p, n * 4));
	CHECK(cudaPointerGetAttributes(&a, p));
	EXPECT(a.type == cudaMemoryTypeManaged && a.devicePointer == p && a.hostPointer == p);
	CHECK(cudaStreamCreate(&s));
	for (size_t i = 0; i < n; i++)
		p[i] = i;
	for (int round = 0; round < 4; round++) {
		increment<<<16, 256, 0, s>>>(p, n);
		CHECK(cudaStreamSynchronize(s));
		for (size_t i = round; i < n; i += 4096)
			p[i] += 1000;
	}
	for (size_t i = 0; i < n; i++) {
		unsigned int want = i + 4;

		for (int round = 0; round < 4; round++)
			if (i % 4096 == (size_t)round)
				want += 1000;
		EXPECT_EQ(p[i], want);
	}
	/* copies from and to it, as from any other memory */
	std::vector<unsigned int> v(n);
	CHECK(cudaMemcpyAsync(v.data(), p, n * 4, cudaMemcpyDefault, s));
	CHECK(cudaMemsetAsync(p, 0, 400, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(v[0] == 1004 && p[0] == 0 && p[99] == 0 && p[100] == 104);
	sum_vector(v);
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(p));
}

/* Advice and prefetching change no result; where a device has no such thing they say so. */
static void hints(void)
{
	unsigned int *p;
	int concurrent;
	cudaMemLocation dev = {}, host = {};

	dev.type = cudaMemLocationTypeDevice;
	dev.id = 0;
	host.type = cudaMemLocationTypeHost;
	CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
	CHECK(cudaMallocManaged(&p, 1 << 20, cudaMemAttachGlobal));
	memset(p, 0, 1 << 20);
	if (concurrent) {
		CHECK(cudaMemAdvise(p, 1 << 20, cudaMemAdviseSetPreferredLocation, dev));
		CHECK(cudaMemPrefetchAsync(p, 1 << 20, dev, 0, 0));
		increment<<<4, 256>>>(p, 1 << 18);
		CHECK(cudaMemPrefetchAsync(p, 1 << 20, host, 0, 0));
	} else {
		increment<<<4, 256>>>(p, 1 << 18);
	}
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < 1 << 18; i++)
		EXPECT_EQ(p[i], 1);
	CHECK(cudaFree(p));
}

template <class F> static void entry(const char *name, F *f)
{
	cudaDriverEntryPointQueryResult q;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)f, 12000, cudaEnableDefault, &q));
	EXPECT(q == cudaDriverEntryPointSuccess && *f);
}

/* Runtimes before 13 ask for a managed variable as for any other one of a module. */
static void by_module(void)
{
	static const char ptx[] =
		".version 8.0\n.target sm_75\n.address_size 64\n"
		".visible .global .attribute(.managed) .align 4 .u32 shown[2] = {7, 9};\n"
		".visible .global .align 4 .u32 hidden = 3;\n"
		".visible .entry swap()\n{\n.reg .b32 %r<3>;\n"
		"ld.global.u32 %r1, [shown];\nld.global.u32 %r2, [shown+4];\n"
		"st.global.u32 [shown], %r2;\nst.global.u32 [shown+4], %r1;\nret;\n}\n";
	CUresult (*load)(CUmodule *, const void *);
	CUresult (*unload)(CUmodule);
	CUresult (*global)(CUdeviceptr *, size_t *, CUmodule, const char *);
	CUresult (*function)(CUfunction *, CUmodule, const char *);
	CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
			   unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
	CUdeviceptr at, hidden;
	CUfunction f;
	CUmodule m;
	size_t len;

	entry("cuModuleLoadData", &load);
	entry("cuModuleUnload", &unload);
	entry("cuModuleGetGlobal", &global);
	entry("cuModuleGetFunction", &function);
	entry("cuLaunchKernel", &launch);
	EXPECT(!load(&m, ptx) && !function(&f, m, "swap"));
	EXPECT(!global(&at, &len, m, "shown") && len == 8);
	EXPECT(!global(&hidden, &len, m, "hidden") && len == 4);

	unsigned int *v = (unsigned int *)at;

	EXPECT(v[0] == 7 && v[1] == 9);
	v[1] = 10;
	EXPECT(!launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(cudaDeviceSynchronize());
	EXPECT(v[0] == 10 && v[1] == 7);
	sum_bytes(v, 8);
	EXPECT(!unload(m));
}

int main()
{
	double *t;
	int managed;

	CHECK(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
	EXPECT(managed);
	for (int i = 0; i < 256; i++)
		table[i] = i;
	CHECK(cudaMallocManaged(&t, 256 * sizeof(double)));
	for (int i = 0; i < 256; i++)
		t[i] = i * 0.5;
	squares<<<1, 256>>>(t);
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < 256; i++)
		EXPECT(t[i] == i * 0.25 * i && table[i] == i + i * 0.25 * i);
	CHECK(cudaFree(t));
	tree();
	in_turn();
	hints();
	by_module();
	return job_passed("managed");
}
