// SPDX-License-Identifier: Apache-2.0
/*
 * cudnn_attention.cu - cuDNN's attention, softmax(scale Q K^T) V in f16 and bf16, by the plans that
 * the library offers, against references in double.
 *
 * For compute capability 13.0 these engines are compiled at run time, by NVRTC.
 */
#include "lib.cuh"

#include <cudnn.h>

#include <functional>
#include <memory>

static cudnnHandle_t dnn;

/* A descriptor of cuDNN's graphs: made, given attributes, finished. */
struct desc {
	cudnnBackendDescriptor_t d;

	desc(cudnnBackendDescriptorType_t type) { LIB(cudnnBackendCreateDescriptor(type, &d)); }
	~desc() { cudnnBackendDestroyDescriptor(d); }
	desc(const desc &) = delete;
	desc &set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
		  const void *value)
	{
		LIB(cudnnBackendSetAttribute(d, name, type, n, value));
		return *this;
	}
	desc &set(cudnnBackendAttributeName_t name, const desc &other)
	{
		return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.d);
	}
	void finish() { LIB(cudnnBackendFinalize(d)); }
};

typedef std::unique_ptr<desc> part;

/* A tensor with strides; a scalar of the host if it has one dimension. */
static part tensor(int64_t uid, cudnnDataType_t type, std::vector<int64_t> dim,
		   std::vector<int64_t> stride)
{
	const bool by_value = dim.size() == 1, no = false;
	const int64_t align = 16;
	part t(new desc(CUDNN_BACKEND_TENSOR_DESCRIPTOR));

	t->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
		.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dim.size(), dim.data())
		.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, dim.size(), stride.data())
		.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid)
		.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align)
		.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &no)
		.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value)
		.finish();
	return t;
}

/* Runs an operation by each of the first plans that are offered; how many worked. */
static int run(const desc &op, int most, std::vector<int64_t> uids, std::vector<void *> at,
	       const std::function<void()> &before, const std::function<void()> &after)
{
	cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
	desc graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	desc heur(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	std::vector<cudnnBackendDescriptor_t> found;
	std::vector<part> configs;
	int64_t n = 0, bytes;
	int worked = 0;

	graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, op)
		.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn).finish();
	heur.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
		.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode).finish();
	for (int i = 0; i < most; i++) {
		configs.emplace_back(new desc(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
		found.push_back(configs.back()->d);
	}
	LIB(cudnnBackendGetAttribute(heur.d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
				     CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &n, found.data()));
	for (int i = 0; i < n && i < most; i++) {
		desc plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
		desc pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
		void *space = NULL;

		plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn)
			.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *configs[i]);
		if (cudnnBackendFinalize(plan.d))	/* an engine may say no */
			continue;
		LIB(cudnnBackendGetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
					     CUDNN_TYPE_INT64, 1, NULL, &bytes));
		if (bytes)
			CHECK(cudaMalloc(&space, bytes));
		pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, at.size(),
			 at.data())
			.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, uids.size(),
			     uids.data())
			.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &space)
			.finish();
		before();
		LIB(cudnnBackendExecute(dnn, plan.d, pack.d));
		CHECK(cudaDeviceSynchronize());
		after();
		if (bytes)
			CHECK(cudaFree(space));
		worked++;
	}
	return worked;
}

struct shape {
	int64_t batch, heads, queries, keys, dim;
};

/* Row-major [batch][heads][rows][dim]. */
template <typename E>
static double at(const std::vector<E> &t, const shape &s, int64_t rows, int64_t b, int64_t h,
		 int64_t r, int64_t d)
{
	return value(t[((b * s.heads + h) * rows + r) * s.dim + d]).real();
}

/*
 * Scores and sums are f32; probabilities are rounded to the type of the tensors before they are
 * multiplied by V, and the result once more: three units of that type, of the mass of a row.
 */
template <typename E>
static void check(const std::vector<E> &q, const std::vector<E> &k, const std::vector<E> &v,
		  const std::vector<E> &o, const shape &s, double scale)
{
	std::vector<double> p(s.keys);

	for (int64_t i = 0; i < s.batch * s.heads * s.queries; i++) {
		int64_t b = i / s.queries / s.heads, h = i / s.queries % s.heads, r = i % s.queries;
		double most = -INFINITY, sum = 0;

		for (int64_t c = 0; c < s.keys; c++) {
			p[c] = 0;
			for (int64_t d = 0; d < s.dim; d++)
				p[c] += at(q, s, s.queries, b, h, r, d) * at(k, s, s.keys, b, h, c, d);
			p[c] *= scale;
			most = fmax(most, p[c]);
		}
		for (double &x : p)
			sum += x = exp(x - most);
		for (int64_t d = 0; d < s.dim; d++) {
			double want = 0, mass = 0;

			for (int64_t c = 0; c < s.keys; c++) {
				double t = p[c] / sum * at(v, s, s.keys, b, h, c, d);

				want += t;
				mass += fabs(t);
			}
			near_enough("attention", i * s.dim + d, at(o, s, s.queries, b, h, r, d),
				    want, 3 * type_of<E>::unit * mass + 1e-5);
		}
	}
}

template <typename E> static void attention(const shape &s, int plans)
{
	const bool half = std::is_same_v<E, __half>;
	const cudnnDataType_t type = half ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
	const int64_t b = s.batch, h = s.heads, sq = s.queries, sk = s.keys, d = s.dim;
	std::vector<E> q = random_values<E>(b * h * sq * d);
	std::vector<E> k = random_values<E>(b * h * sk * d);
	std::vector<E> v = random_values<E>(b * h * sk * d);
	E *dq = to_device(q), *dk = to_device(k), *dv = to_device(v), *dout = to_device(q);
	float scale = 1 / sqrtf(d);
	part tq = tensor('q', type, { b, h, sq, d }, { h * sq * d, sq * d, d, 1 });
	part tk = tensor('k', type, { b, h, sk, d }, { h * sk * d, sk * d, d, 1 });
	part tv = tensor('v', type, { b, h, sk, d }, { h * sk * d, sk * d, d, 1 });
	part to = tensor('o', type, { b, h, sq, d }, { h * sq * d, sq * d, d, 1 });
	part factor = tensor('f', CUDNN_DATA_FLOAT, { 1 }, { 1 });
	desc op(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
	int n;

	op.set(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, *tq)
		.set(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, *tk)
		.set(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, *tv)
		.set(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, *to)
		.set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, *factor).finish();
	n = run(op, plans, { 'q', 'k', 'v', 'o', 'f' }, { dq, dk, dv, dout, &scale },
		[&] { CHECK(cudaMemset(dout, 0xee, b * h * sq * d * sizeof(E))); },
		[&] { check(q, k, v, results(dout, b * h * sq * d), s, scale); });
	if (!n) {
		printf("FAIL attention: no engine is offered\n");
		exit(1);
	}
	printf("attention in %s, %ld x %ld heads, %ld queries, %ld keys of %ld: %d plans\n",
	       type_of<E>::name, (long)b, (long)h, (long)sq, (long)sk, (long)d, n);
	CHECK(cudaFree(dq));
	CHECK(cudaFree(dk));
	CHECK(cudaFree(dv));
	CHECK(cudaFree(dout));
}

int main(int argc, char **argv)
{
	LIB(cudnnCreate(&dnn));
	attention<__half>({ 1, 2, 64, 64, 64 }, 1);
	if (!lib_arg(argc, argv, "fast")) {
		attention<__nv_bfloat16>({ 2, 1, 64, 128, 64 }, 2);
		attention<__half>({ 1, 2, 128, 64, 32 }, 2);
		attention<__half>({ 1, 1, 40, 72, 128 }, 2);
	}
	LIB(cudnnDestroy(dnn));
	return job_passed("cudnn_attention");
}
