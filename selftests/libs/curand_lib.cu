// SPDX-License-Identifier: Apache-2.0
/*
 * curand_lib.cu - cuRAND's generators on the device against the same generators on the host, and
 * the range, mean and variance of their numbers.
 */
#include "lib.cuh"

#include <curand.h>

struct kind {
	curandRngType_t type;
	const char *name;
	bool quasi, wide;	/* wide: 64 bits at a time */
};

static const struct kind kinds[] = {
	{ CURAND_RNG_PSEUDO_XORWOW, "xorwow", false, false },
	{ CURAND_RNG_PSEUDO_PHILOX4_32_10, "philox", false, false },
	{ CURAND_RNG_PSEUDO_MRG32K3A, "mrg32k3a", false, false },
	{ CURAND_RNG_PSEUDO_MTGP32, "mtgp32", false, false },
	{ CURAND_RNG_PSEUDO_MT19937, "mt19937", false, false },
	{ CURAND_RNG_QUASI_SOBOL32, "sobol32", true, false },
	{ CURAND_RNG_QUASI_SCRAMBLED_SOBOL32, "scrambled sobol32", true, false },
	{ CURAND_RNG_QUASI_SOBOL64, "sobol64", true, true },
	{ CURAND_RNG_QUASI_SCRAMBLED_SOBOL64, "scrambled sobol64", true, true },
};

/* The same generator on the device and on the host. */
struct pair {
	curandGenerator_t device, host;
	const struct kind *kind;

	pair(const struct kind *k) : kind(k)
	{
		LIB(curandCreateGenerator(&device, k->type));
		LIB(curandCreateGeneratorHost(&host, k->type));
		for (curandGenerator_t g : { device, host })
			if (k->quasi)
				LIB(curandSetQuasiRandomGeneratorDimensions(g, 4));
			else
				LIB(curandSetPseudoRandomGeneratorSeed(g, 20240607ull));
	}
	~pair()
	{
		LIB(curandDestroyGenerator(device));
		LIB(curandDestroyGenerator(host));
	}
};

/* Fills device memory and host memory by the same call; what differs by more than tol is an error. */
template <typename T, typename F>
static void both(const pair &p, const char *what, size_t n, double tol, F generate,
		 double mean = NAN, double variance = NAN)
{
	std::vector<T> want(n), got;
	T *d = to_device(want);
	double sum = 0, squares = 0;
	char name[80];

	snprintf(name, sizeof(name), "%s %s", p.kind->name, what);
	LIB(generate(p.device, d));
	LIB(generate(p.host, want.data()));
	got = results(d, n);
	CHECK(cudaFree(d));
	for (size_t i = 0; i < n; i++) {
		if (!(fabs((double)got[i] - (double)want[i]) <=
		      tol * fmax(1, fabs((double)want[i])))) {
			printf("FAIL %s: number %zu is %.9g, not %.9g\n", name, i, (double)got[i],
			       (double)want[i]);
			exit(1);
		}
		sum += got[i];
		squares += (double)got[i] * got[i];
	}
	if (std::isnan(mean))
		return;
	/* six standard errors of the mean, and as much of the variance of a normal distribution */
	near_enough(name, 0, sum / n, mean, 6 * sqrt(variance / n));
	near_enough(name, 1, squares / n - sum / n * (sum / n), variance, 6 * variance * sqrt(2.0 / n));
}

/* Transcendental functions of the host and of the device differ in their last places. */
static void distributions(const struct kind *k, size_t n, bool all)
{
	/* MTGP32 on the host makes its normal doubles from floats */
	const double doubles = k->type == CURAND_RNG_PSEUDO_MTGP32 ? 1e-6 : 1e-13;
	pair p(k);

	both<float>(p, "uniform", n, 0x1p-23, [n](curandGenerator_t g, float *x) {
		return curandGenerateUniform(g, x, n); }, 0.5, 1 / 12.0);
	if (!all)
		return;
	if (k->wide)
		both<unsigned long long>(p, "64 bits", n, 0,
			[n](curandGenerator_t g, unsigned long long *x) {
				return curandGenerateLongLong(g, x, n); });
	else
		both<unsigned int>(p, "bits", n, 0, [n](curandGenerator_t g, unsigned int *x) {
			return curandGenerate(g, x, n); });
	both<double>(p, "uniform double", n, 0x1p-52, [n](curandGenerator_t g, double *x) {
		return curandGenerateUniformDouble(g, x, n); }, 0.5, 1 / 12.0);
	both<float>(p, "normal", n, 4e-6, [n](curandGenerator_t g, float *x) {
		return curandGenerateNormal(g, x, n, 1, 2); }, 1, 4);
	both<double>(p, "normal double", n, doubles, [n](curandGenerator_t g, double *x) {
		return curandGenerateNormalDouble(g, x, n, 0, 1); }, 0, 1);
	both<float>(p, "log-normal", n, 1e-5, [n](curandGenerator_t g, float *x) {
		return curandGenerateLogNormal(g, x, n, 0, 0.5f); });
	both<unsigned int>(p, "poisson", n, 0, [n](curandGenerator_t g, unsigned int *x) {
		return curandGeneratePoisson(g, x, n, 12.5); }, 12.5, 12.5);
}

int main(int argc, char **argv)
{
	bool fast = lib_arg(argc, argv, "fast");

	for (const struct kind &k : kinds) {
		if (fast && &k > &kinds[1])
			break;
		distributions(&k, 4096, !fast);
	}
	return job_passed("curand_lib");
}
