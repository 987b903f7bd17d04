/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib.cuh - what the programs on NVIDIA's libraries share: number types by name, random data,
 * references in double precision, and bounds on the error that follow from the arithmetic.
 *
 * An error is measured against the sum of the absolute values of what was added up ("mass"): a sum
 * of n terms in a type of unit roundoff u errs by no more than about n u times its mass, in whatever
 * order it is taken. A bound that a wrong result would pass tests nothing: mass is of random terms
 * in [-1, 1), and a missing or misplaced term is orders of magnitude above it.
 */
#ifndef LIB_CUH
#define LIB_CUH

#include "../jobs/job.cuh"

#include <complex>
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <library_types.h>
#include <type_traits>

typedef std::complex<double> cplx;

/* Calls of a library: each has a status of its own type, of which 0 is success. */
#define LIB(...) do {							\
	int _s = (int)(__VA_ARGS__);					\
	if (_s) {							\
		printf("FAIL %s:%d: %s: status %d\n", __FILE__, __LINE__, #__VA_ARGS__, _s); \
		exit(1);						\
	}								\
} while (0)

/* Types: the unit roundoff, and whether there is an imaginary part. */
template <typename T> struct type_of;
#define TYPE(T, UNIT, COMPLEX, CUDA)					\
template <> struct type_of<T> {						\
	static constexpr double unit = UNIT;				\
	static constexpr bool is_complex = COMPLEX;			\
	static constexpr cudaDataType_t cuda = CUDA;			\
	static constexpr const char *name = #T;				\
}
TYPE(double, 0x1p-53, false, CUDA_R_64F);
TYPE(float, 0x1p-24, false, CUDA_R_32F);
TYPE(__half, 0x1p-11, false, CUDA_R_16F);
TYPE(__nv_bfloat16, 0x1p-8, false, CUDA_R_16BF);
TYPE(__nv_fp8_e4m3, 0x1p-4, false, CUDA_R_8F_E4M3);
TYPE(__nv_fp8_e5m2, 0x1p-3, false, CUDA_R_8F_E5M2);
TYPE(int8_t, 0, false, CUDA_R_8I);
TYPE(int32_t, 0, false, CUDA_R_32I);
TYPE(cuComplex, 0x1p-23, true, CUDA_C_32F);
TYPE(cuDoubleComplex, 0x1p-52, true, CUDA_C_64F);
#undef TYPE

static inline cplx value(double v) { return v; }
static inline cplx value(float v) { return v; }
static inline cplx value(__half v) { return __half2float(v); }
static inline cplx value(__nv_bfloat16 v) { return __bfloat162float(v); }
static inline cplx value(__nv_fp8_e4m3 v) { return (float)v; }
static inline cplx value(__nv_fp8_e5m2 v) { return (float)v; }
static inline cplx value(int8_t v) { return v; }
static inline cplx value(int32_t v) { return v; }
static inline cplx value(cuComplex v) { return cplx(v.x, v.y); }
static inline cplx value(cuDoubleComplex v) { return cplx(v.x, v.y); }

/* The nearest value of a type. */
template <typename T> static T nearest(cplx v)
{
	if constexpr (type_of<T>::is_complex) {
		T t;

		t.x = v.real();
		t.y = v.imag();
		return t;
	} else if constexpr (std::is_integral_v<T>) {
		return (T)lrint(v.real());
	} else if constexpr (std::is_same_v<T, double>) {
		return v.real();
	} else {
		return T((float)v.real());
	}
}

static unsigned int lib_seed = 12345;

/* n random values in [-1, 1); of integers in [-127, 127]. */
template <typename T> static std::vector<T> random_values(size_t n)
{
	std::vector<T> v(n);

	for (T &x : v) {
		double scale = std::is_integral_v<T> ? 127 : 1, re = rndf(&lib_seed);

		x = nearest<T>(cplx(scale * re, type_of<T>::is_complex ? rndf(&lib_seed) : 0.0));
	}
	return v;
}

/* A result with its reference, and how far apart they may be. */
static inline void near_enough(const char *what, size_t at, cplx got, cplx want, double bound)
{
	double d = std::abs(got - want);

	if (d <= bound)
		return;
	printf("FAIL %s: element %zu is %.17g %+.17gi, not %.17g %+.17gi: %.3g apart, %.3g allowed\n",
	       what, at, got.real(), got.imag(), want.real(), want.imag(), d, bound);
	exit(1);
}

/* Takes the device's results into the checksum and back to the host. */
template <typename T> static std::vector<T> results(const T *d, size_t n)
{
	std::vector<T> v = to_host(d, n);

	sum_vector(v);
	return v;
}

/*
 * Whether the program was started with this argument. "fast": a few shapes, whose kernels compile in
 * seconds. "all": also what the soft device cannot do, for devices that can: small products of 8-bit integers
 * (see docs/programs.md).
 */
static inline bool lib_arg(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], name))
			return true;
	return false;
}

/* A part alone, by its name among the arguments; without names, all. */
static inline bool lib_part(int argc, char **argv, const char *part)
{
	bool named = false;

	for (int i = 1; i < argc; i++)
		named |= !!strcmp(argv[i], "all");
	if (named && !lib_arg(argc, argv, part))
		return false;
	printf("%s\n", part);
	return true;
}

#endif
