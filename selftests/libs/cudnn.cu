// SPDX-License-Identifier: Apache-2.0
/*
 * cudnn.cu - cuDNN: convolution forward and backward by all algorithms that the library offers,
 * batch norm, pooling, activations, softmax, biases and reductions, and recurrent networks, against
 * references in double.
 */
#include "lib.cuh"

#include <cudnn.h>

static cudnnHandle_t dnn;
static const float one = 1, zero = 0;

template <typename E> static cudnnDataType_t dnn_type(void)
{
	if (std::is_same_v<E, __half>)
		return CUDNN_DATA_HALF;
	if (std::is_same_v<E, __nv_bfloat16>)
		return CUDNN_DATA_BFLOAT16;
	return std::is_same_v<E, double> ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

/* A tensor of four dimensions, packed, in either order of channels. */
template <typename E> struct tensor {
	int n, c, h, w;
	bool nhwc;
	std::vector<E> host;
	E *dev;
	cudnnTensorDescriptor_t desc;

	tensor(int n_, int c_, int h_, int w_, bool last = false) : n(n_), c(c_), h(h_), w(w_),
		nhwc(last), host(random_values<E>((size_t)n_ * c_ * h_ * w_)), dev(to_device(host))
	{
		LIB(cudnnCreateTensorDescriptor(&desc));
		LIB(cudnnSetTensor4dDescriptor(desc, last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
					       dnn_type<E>(), n, c, h, w));
	}
	~tensor()
	{
		LIB(cudnnDestroyTensorDescriptor(desc));
		CHECK(cudaFree(dev));
	}
	tensor(const tensor &) = delete;

	size_t index(int i, int j, int y, int x) const
	{
		return nhwc ? ((size_t)(i * h + y) * w + x) * c + j : ((size_t)(i * c + j) * h + y) * w + x;
	}
	double at(int i, int j, int y, int x) const { return value(host[index(i, j, y, x)]).real(); }
	size_t size() const { return host.size(); }
	std::vector<E> now() const { return results(dev, host.size()); }
	void poison() { CHECK(cudaMemset(dev, 0xee, size() * sizeof(E))); }
};

/* ------------------------------------------------------------- convolution */

struct conv {
	int n, c, h, w, k, r, s, pad, stride, dilation, groups;
	bool nhwc;
};

/* What a convolution adds up, for whoever wants to know: f(n, k, p, q, c, r, s, y, x). */
template <typename F> static void each_term(const conv &v, int p, int q, F f)
{
	int cg = v.c / v.groups, kg = v.k / v.groups;

	for (int n = 0; n < v.n; n++)
		for (int k = 0; k < v.k; k++)
			for (int o = 0; o < p * q * cg * v.r * v.s; o++) {
				int s = o % v.s, r = o / v.s % v.r, c = o / v.s / v.r % cg;
				int x = o / v.s / v.r / cg % q, y = o / v.s / v.r / cg / q;
				int iy = y * v.stride - v.pad + r * v.dilation;
				int ix = x * v.stride - v.pad + s * v.dilation;

				if (iy >= 0 && iy < v.h && ix >= 0 && ix < v.w)
					f(n, k, y, x, k / kg * cg + c, c, r, s, iy, ix);
			}
}

/* Sums with their masses, as large as a tensor. */
struct sums {
	std::vector<double> sum, mass;

	sums(size_t n) : sum(n), mass(n) { }
	void add(size_t at, double v)
	{
		sum[at] += v;
		mass[at] += fabs(v);
	}
	template <typename E> void check(const char *what, const std::vector<E> &got, double unit)
	{
		for (size_t i = 0; i < sum.size(); i++)
			near_enough(what, i, value(got[i]), sum[i], unit * mass[i] + 1e-30);
	}
};

template <typename E> struct convolution {
	const conv v;
	int p, q;
	tensor<E> x, w, y;
	sums want_x, want_w, want_y;
	cudnnFilterDescriptor_t filter;
	cudnnConvolutionDescriptor_t desc;
	int tried;

	static int extent(int in, int k, const conv &v)
	{
		return (in + 2 * v.pad - v.dilation * (k - 1) - 1) / v.stride + 1;
	}
	convolution(const conv &c, cudnnDataType_t compute) : v(c), p(extent(c.h, c.r, c)),
		q(extent(c.w, c.s, c)), x(c.n, c.c, c.h, c.w, c.nhwc),
		w(c.k, c.c / c.groups, c.r, c.s, c.nhwc), y(c.n, c.k, p, q, c.nhwc),
		want_x(x.size()), want_w(w.size()), want_y(y.size()), tried(0)
	{
		LIB(cudnnCreateFilterDescriptor(&filter));
		LIB(cudnnSetFilter4dDescriptor(filter, dnn_type<E>(), c.nhwc ? CUDNN_TENSOR_NHWC :
					       CUDNN_TENSOR_NCHW, c.k, c.c / c.groups, c.r, c.s));
		LIB(cudnnCreateConvolutionDescriptor(&desc));
		LIB(cudnnSetConvolution2dDescriptor(desc, c.pad, c.pad, c.stride, c.stride,
						    c.dilation, c.dilation,
						    CUDNN_CROSS_CORRELATION, compute));
		LIB(cudnnSetConvolutionGroupCount(desc, c.groups));
		each_term(v, p, q, [&](int n, int k, int py, int qx, int ch, int cg, int r, int s,
				       int iy, int ix) {
			double xv = x.at(n, ch, iy, ix), wv = w.at(k, cg, r, s);
			double yv = y.at(n, k, py, qx);

			want_y.add(y.index(n, k, py, qx), xv * wv);
			want_x.add(x.index(n, ch, iy, ix), yv * wv);
			want_w.add(w.index(k, cg, r, s), yv * xv);
		});
	}
	~convolution()
	{
		LIB(cudnnDestroyFilterDescriptor(filter));
		LIB(cudnnDestroyConvolutionDescriptor(desc));
	}

	/* Winograd's and Fourier's ways add and subtract what cancels: their error is of all terms. */
	double unit(int terms, bool transforms) const
	{
		return ((terms + 4) * 0x1p-23 + 2 * type_of<E>::unit) * (transforms ? 16 : 1);
	}
	/* run by an algorithm, if it is offered; true if so */
	template <typename F, typename G> bool by(F workspace, G run)
	{
		size_t bytes = 0;
		char *buf;

		if (workspace(&bytes) != CUDNN_STATUS_SUCCESS)
			return false;
		CHECK(cudaMalloc(&buf, bytes + 16));
		LIB(run(buf, bytes));
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaFree(buf));
		tried++;
		return true;
	}
	void forward(int algos)
	{
		std::vector<E> keep = y.host;

		tried = 0;
		for (int a = 0; a < CUDNN_CONVOLUTION_FWD_ALGO_COUNT && tried < algos; a++) {
			cudnnConvolutionFwdAlgo_t algo = (cudnnConvolutionFwdAlgo_t)a;

			y.poison();
			if (by([&](size_t *n) { return cudnnGetConvolutionForwardWorkspaceSize(dnn, x.desc,
						filter, desc, y.desc, algo, n); },
			       [&](void *buf, size_t n) { return cudnnConvolutionForward(dnn, &one, x.desc,
						x.dev, filter, w.dev, desc, algo, buf, n, &zero,
						y.desc, y.dev); }))
				want_y.check("forward", y.now(),
					     unit(v.c * v.r * v.s, a >= CUDNN_CONVOLUTION_FWD_ALGO_FFT));
		}
		EXPECT(tried > 0);
		CHECK(cudaMemcpy(y.dev, keep.data(), keep.size() * sizeof(E), cudaMemcpyHostToDevice));
	}
	void backward_data(int algos)
	{
		std::vector<E> keep = x.host;

		tried = 0;
		for (int a = 0; a < CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT && tried < algos; a++) {
			cudnnConvolutionBwdDataAlgo_t algo = (cudnnConvolutionBwdDataAlgo_t)a;

			x.poison();
			if (by([&](size_t *n) { return cudnnGetConvolutionBackwardDataWorkspaceSize(dnn,
						filter, y.desc, desc, x.desc, algo, n); },
			       [&](void *buf, size_t n) { return cudnnConvolutionBackwardData(dnn, &one,
						filter, w.dev, y.desc, y.dev, desc, algo, buf, n,
						&zero, x.desc, x.dev); }))
				want_x.check("backward data", x.now(), unit(v.k * v.r * v.s,
					     a >= CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT));
		}
		EXPECT(tried > 0);
		CHECK(cudaMemcpy(x.dev, keep.data(), keep.size() * sizeof(E), cudaMemcpyHostToDevice));
	}
	void backward_filter(int algos)
	{
		tried = 0;
		for (int a = 0; a < CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT && tried < algos; a++) {
			cudnnConvolutionBwdFilterAlgo_t algo = (cudnnConvolutionBwdFilterAlgo_t)a;
			/* the algorithms 0 and 3 add atomically: their sums have no fixed order */

			w.poison();
			if (by([&](size_t *n) { return cudnnGetConvolutionBackwardFilterWorkspaceSize(dnn,
						x.desc, y.desc, desc, filter, algo, n); },
			       [&](void *buf, size_t n) { return cudnnConvolutionBackwardFilter(dnn, &one,
						x.desc, x.dev, y.desc, y.dev, desc, algo, buf, n,
						&zero, filter, w.dev); }))
				want_w.check("backward filter", w.now(), unit(v.n * p * q,
					     a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT ||
					     a >= CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD));
		}
		EXPECT(tried > 0);
	}
};

template <typename E> static void convolve(const conv &v, int algos, bool backward)
{
	convolution<E> c(v, CUDNN_DATA_FLOAT);

	c.forward(algos);
	if (!backward)
		return;
	c.backward_data(algos);
	c.backward_filter(algos);
}

/* --------------------------------------------------------- what goes between */

template <typename E> static void pooling(cudnnPoolingMode_t mode, int window, int pad, int stride,
					  bool nhwc)
{
	tensor<E> x(2, 3, 11, 9, nhwc);
	int h = (x.h + 2 * pad - window) / stride + 1, w = (x.w + 2 * pad - window) / stride + 1;
	tensor<E> y(2, 3, h, w, nhwc), dy(2, 3, h, w, nhwc), dx(2, 3, 11, 9, nhwc);
	cudnnPoolingDescriptor_t d;
	std::vector<E> got;
	sums back(x.size());

	LIB(cudnnCreatePoolingDescriptor(&d));
	LIB(cudnnSetPooling2dDescriptor(d, mode, CUDNN_NOT_PROPAGATE_NAN, window, window, pad, pad,
					stride, stride));
	LIB(cudnnPoolingForward(dnn, d, &one, x.desc, x.dev, &zero, y.desc, y.dev));
	got = y.now();
	for (int i = 0; i < 6 * h * w; i++) {
		int n = i / h / w / 3, c = i / h / w % 3, p = i / w % h, q = i % w, count = 0;
		int best = -1;
		double sum = 0, most = -1e9, mass = 0;

		for (int o = 0; o < window * window; o++) {
			int iy = p * stride - pad + o / window, ix = q * stride - pad + o % window;

			if (iy < 0 || iy >= x.h || ix < 0 || ix >= x.w)
				continue;
			if (x.at(n, c, iy, ix) > most) {
				most = x.at(n, c, iy, ix);
				best = x.index(n, c, iy, ix);
			}
			sum += x.at(n, c, iy, ix);
			mass += fabs(x.at(n, c, iy, ix));
			count++;
		}
		if (mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING)
			count = window * window;
		if (mode == CUDNN_POOLING_MAX)
			near_enough("max pooling", i, value(got[y.index(n, c, p, q)]), most, 0);
		else
			near_enough("average pooling", i, value(got[y.index(n, c, p, q)]), sum / count,
				    2 * type_of<E>::unit * mass);
		for (int o = 0; o < window * window; o++) {
			int iy = p * stride - pad + o / window, ix = q * stride - pad + o % window;
			double g = dy.at(n, c, p, q);

			if (iy < 0 || iy >= x.h || ix < 0 || ix >= x.w)
				continue;
			if (mode != CUDNN_POOLING_MAX)
				back.add(x.index(n, c, iy, ix), g / count);
			else if ((int)x.index(n, c, iy, ix) == best)
				back.add(best, g);
		}
	}
	LIB(cudnnPoolingBackward(dnn, d, &one, y.desc, y.dev, dy.desc, dy.dev, x.desc, x.dev, &zero,
				 dx.desc, dx.dev));
	back.check("pooling backward", dx.now(), 8 * type_of<E>::unit);
	LIB(cudnnDestroyPoolingDescriptor(d));
}

static double activate(cudnnActivationMode_t mode, double v)
{
	switch (mode) {
	case CUDNN_ACTIVATION_SIGMOID:
		return 1 / (1 + exp(-v));
	case CUDNN_ACTIVATION_TANH:
		return tanh(v);
	case CUDNN_ACTIVATION_ELU:
		return v > 0 ? v : expm1(v);
	case CUDNN_ACTIVATION_CLIPPED_RELU:
		return fmin(fmax(v, 0), 0.4);
	default:
		return fmax(v, 0);
	}
}

template <typename E> static void activations(void)
{
	static const cudnnActivationMode_t modes[] = {
		CUDNN_ACTIVATION_RELU, CUDNN_ACTIVATION_SIGMOID, CUDNN_ACTIVATION_TANH,
		CUDNN_ACTIVATION_ELU, CUDNN_ACTIVATION_CLIPPED_RELU,
	};
	cudnnActivationDescriptor_t d;

	LIB(cudnnCreateActivationDescriptor(&d));
	for (cudnnActivationMode_t mode : modes) {
		tensor<E> x(2, 5, 7, 3), y(2, 5, 7, 3);
		double coef = mode == CUDNN_ACTIVATION_CLIPPED_RELU ? 0.4 : 1;

		LIB(cudnnSetActivationDescriptor(d, mode, CUDNN_NOT_PROPAGATE_NAN, coef));
		LIB(cudnnActivationForward(dnn, d, &one, x.desc, x.dev, &zero, y.desc, y.dev));
		std::vector<E> got = y.now();
		for (size_t i = 0; i < got.size(); i++)
			near_enough("activation", i, value(got[i]),
				    activate(mode, value(x.host[i]).real()), 2 * type_of<E>::unit + 1e-6);
	}
	LIB(cudnnDestroyActivationDescriptor(d));
}

template <typename E> static void softmax(cudnnSoftmaxAlgorithm_t algo, int classes)
{
	tensor<E> x(6, classes, 1, 1), y(6, classes, 1, 1), dy(6, classes, 1, 1), dx(6, classes, 1, 1);
	const bool log = algo == CUDNN_SOFTMAX_LOG;
	std::vector<E> got, back;

	LIB(cudnnSoftmaxForward(dnn, algo, CUDNN_SOFTMAX_MODE_INSTANCE, &one, x.desc, x.dev, &zero,
				y.desc, y.dev));
	got = y.now();
	LIB(cudnnSoftmaxBackward(dnn, algo, CUDNN_SOFTMAX_MODE_INSTANCE, &one, y.desc, y.dev, dy.desc,
				 dy.dev, &zero, dx.desc, dx.dev));
	back = dx.now();
	for (int n = 0; n < 6; n++) {
		double total = 0, dot = 0, mass = 0;

		for (int c = 0; c < classes; c++)
			total += exp(x.at(n, c, 0, 0));
		for (int c = 0; c < classes; c++) {
			double p = exp(x.at(n, c, 0, 0)) / total, g = dy.at(n, c, 0, 0);

			near_enough("softmax", n * classes + c, value(got[n * classes + c]),
				    log ? ::log(p) : p, (2 * type_of<E>::unit + 1e-6) * (log ? 8 : 1));
			dot += log ? g : g * p;
			mass += log ? fabs(g) : fabs(g * p);
		}
		for (int c = 0; c < classes; c++) {
			double p = exp(x.at(n, c, 0, 0)) / total, g = dy.at(n, c, 0, 0);

			near_enough("softmax backward", n * classes + c, value(back[n * classes + c]),
				    log ? g - p * dot : p * (g - dot),
				    (8 * type_of<E>::unit + 1e-5) * (fabs(g) + mass));
		}
	}
}

/* Normalisation over the batch, in training: a mean and a variance for each channel. */
template <typename E> static void batch_norm(int n, int c, int h, int w, bool nhwc)
{
	const double eps = 1e-3;
	tensor<E> x(n, c, h, w, nhwc), y(n, c, h, w, nhwc), dy(n, c, h, w, nhwc), dx(n, c, h, w, nhwc);
	tensor<float> scale(1, c, 1, 1), bias(1, c, 1, 1), mean(1, c, 1, 1), var(1, c, 1, 1);
	tensor<float> rmean(1, c, 1, 1), rvar(1, c, 1, 1), dscale(1, c, 1, 1), dbias(1, c, 1, 1);
	const cudnnBatchNormMode_t mode = CUDNN_BATCHNORM_SPATIAL;
	const int count = n * h * w;
	std::vector<E> got, back;

	LIB(cudnnBatchNormalizationForwardTraining(dnn, mode, &one, &zero, x.desc, x.dev, y.desc, y.dev,
			scale.desc, scale.dev, bias.dev, 1.0, rmean.dev, rvar.dev, eps, mean.dev, var.dev));
	got = y.now();
	LIB(cudnnBatchNormalizationBackward(dnn, mode, &one, &zero, &one, &zero, x.desc, x.dev, dy.desc,
			dy.dev, dx.desc, dx.dev, scale.desc, scale.dev, dscale.dev, dbias.dev, eps,
			mean.dev, var.dev));
	back = dx.now();
	std::vector<float> gm = rmean.now(), gs = dscale.now(), gb = dbias.now();
	for (int k = 0; k < c; k++) {
		double m = 0, v = 0, sb = 0, ss = 0, inv;
		auto each = [&](auto f) {
			for (int i = 0; i < count; i++)
				f(i / h / w, i / w % h, i % w);
		};

		each([&](int i, int a, int b) { m += x.at(i, k, a, b) / count; });
		each([&](int i, int a, int b) { v += pow(x.at(i, k, a, b) - m, 2) / count; });
		inv = 1 / sqrt(v + eps);
		each([&](int i, int a, int b) {
			sb += dy.at(i, k, a, b);
			ss += dy.at(i, k, a, b) * (x.at(i, k, a, b) - m) * inv;
		});
		near_enough("mean", k, gm[k], m, 1e-5);
		near_enough("scale's gradient", k, gs[k], ss, 1e-5 * count);
		near_enough("bias's gradient", k, gb[k], sb, 1e-5 * count);
		each([&](int i, int a, int b) {
			double hat = (x.at(i, k, a, b) - m) * inv, s = scale.at(0, k, 0, 0);
			size_t at = x.index(i, k, a, b);

			near_enough("batch norm", at, value(got[at]), s * hat + bias.at(0, k, 0, 0),
				    (4 * type_of<E>::unit + 1e-5) * 4);
			near_enough("batch norm backward", at, value(back[at]),
				    s * inv * (dy.at(i, k, a, b) - sb / count - hat * ss / count),
				    (4 * type_of<E>::unit + 1e-5) * 8);
		});
	}
}

static void add_and_reduce(void)
{
	tensor<float> x(3, 4, 5, 6), bias(1, 4, 1, 1), sum(1, 4, 1, 1);
	cudnnReduceTensorDescriptor_t d;
	size_t bytes;
	char *buf;
	std::vector<float> got;

	LIB(cudnnAddTensor(dnn, &one, bias.desc, bias.dev, &one, x.desc, x.dev));
	got = x.now();
	for (size_t i = 0; i < got.size(); i++)
		near_enough("bias", i, got[i], (double)x.host[i] + bias.host[i / 30 % 4], 0x1p-23);
	LIB(cudnnCreateReduceTensorDescriptor(&d));
	LIB(cudnnSetReduceTensorDescriptor(d, CUDNN_REDUCE_TENSOR_ADD, CUDNN_DATA_FLOAT,
			CUDNN_NOT_PROPAGATE_NAN, CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES));
	LIB(cudnnGetReductionWorkspaceSize(dnn, d, x.desc, sum.desc, &bytes));
	CHECK(cudaMalloc(&buf, bytes + 16));
	LIB(cudnnReduceTensor(dnn, d, NULL, 0, buf, bytes, &one, x.desc, x.dev, &zero, sum.desc, sum.dev));
	std::vector<float> sums = sum.now();
	for (int c = 0; c < 4; c++) {
		double want = 0;

		for (int i = 0; i < 3 * 30; i++)
			want += got[(i / 30 * 4 + c) * 30 + i % 30];
		near_enough("sum", c, sums[c], want, 90 * 0x1p-23 * 90);
	}
	CHECK(cudaFree(buf));
	LIB(cudnnDestroyReduceTensorDescriptor(d));
}

/* ------------------------------------------------------- recurrent networks */

static double sigmoid(double v)
{
	return 1 / (1 + exp(-v));
}

/* A layer's weights where cuDNN has put them: gates by gates (inputs first), a matrix and a bias each. */
struct gates {
	std::vector<std::vector<float>> w, r, bw;	/* of the input, of the state; biases */
	int n;

	gates(cudnnRNNDescriptor_t rnn, int n_, const void *space, size_t bytes) : n(n_)
	{
		cudnnTensorDescriptor_t md, bd;
		cudnnDataType_t type;
		int dims, dim[3], stride[3];
		void *m, *b;

		LIB(cudnnCreateTensorDescriptor(&md));
		LIB(cudnnCreateTensorDescriptor(&bd));
		for (int i = 0; i < 2 * n; i++) {
			LIB(cudnnGetRNNWeightParams(dnn, rnn, 0, bytes, space, i, md, &m, bd, &b));
			LIB(cudnnGetTensorNdDescriptor(md, 3, &type, &dims, dim, stride));
			(i < n ? w : r).push_back(to_host((float *)m, (size_t)dim[1] * dim[2]));
			if (b)	/* one for each gate: of the input */
				bw.push_back(to_host((float *)b, dim[1]));
		}
		LIB(cudnnDestroyTensorDescriptor(md));
		LIB(cudnnDestroyTensorDescriptor(bd));
		EXPECT_EQ(bw.size(), (size_t)n);
	}
	/* gate g of unit u, before its function: both products, and the bias */
	double input(int g, int u, const std::vector<double> &x) const
	{
		double v = bw[g][u];

		for (size_t i = 0; i < x.size(); i++)
			v += x[i] * w[g][u * x.size() + i];
		return v;
	}
	double state(int g, int u, const std::vector<double> &h) const
	{
		double v = 0;

		for (size_t i = 0; i < h.size(); i++)
			v += h[i] * r[g][u * h.size() + i];
		return v;
	}
};

/* One step of one sequence: the new state from the old one. */
static void rnn_step(cudnnRNNMode_t mode, const gates &g, const std::vector<double> &x,
		     std::vector<double> &h, std::vector<double> &c)
{
	std::vector<double> next(h.size());

	for (size_t u = 0; u < h.size(); u++) {
		auto both = [&](int k) { return g.input(k, u, x) + g.state(k, u, h); };

		if (mode == CUDNN_RNN_TANH) {
			next[u] = tanh(both(0));
		} else if (mode == CUDNN_LSTM) {	/* input, forget, new, output */
			c[u] = sigmoid(both(1)) * c[u] + sigmoid(both(0)) * tanh(both(2));
			next[u] = sigmoid(both(3)) * tanh(c[u]);
		} else {				/* GRU: reset, keep, new */
			double keep = sigmoid(both(1));

			next[u] = keep * h[u] + (1 - keep) *
				  tanh(g.input(2, u, x) + sigmoid(both(0)) * g.state(2, u, h));
		}
	}
	h = next;
}

static void recurrent(cudnnRNNMode_t mode, int steps, int batch, int in, int hidden)
{
	cudnnRNNDescriptor_t rnn;
	cudnnRNNDataDescriptor_t xd, yd;
	cudnnTensorDescriptor_t hd;
	cudnnDropoutDescriptor_t drop;
	int dims[3] = { 1, batch, hidden }, stride[3] = { batch * hidden, hidden, 1 };
	std::vector<int> length(batch, steps);
	std::vector<float> x = random_values<float>(steps * batch * in), got, last;
	std::vector<float> h = random_values<float>(batch * hidden);
	std::vector<float> c = random_values<float>(batch * hidden), y(steps * batch * hidden, NAN);
	float *dx = to_device(x), *dh = to_device(h), *dc = to_device(c), *dy = to_device(y);
	float *hy = to_device(h), *cy = to_device(c), *weights;
	int *dl = to_device(length);
	size_t bytes, work, reserve;
	char *buf;

	LIB(cudnnCreateDropoutDescriptor(&drop));
	LIB(cudnnSetDropoutDescriptor(drop, dnn, 0, NULL, 0, 0));
	LIB(cudnnCreateRNNDescriptor(&rnn));
	LIB(cudnnSetRNNDescriptor_v8(rnn, CUDNN_RNN_ALGO_STANDARD, mode, CUDNN_RNN_SINGLE_INP_BIAS,
				     CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT,
				     CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, in, hidden, hidden, 1, drop, 0));
	LIB(cudnnCreateRNNDataDescriptor(&xd));
	LIB(cudnnCreateRNNDataDescriptor(&yd));
	LIB(cudnnSetRNNDataDescriptor(xd, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
				      steps, batch, in, length.data(), NULL));
	LIB(cudnnSetRNNDataDescriptor(yd, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
				      steps, batch, hidden, length.data(), NULL));
	LIB(cudnnCreateTensorDescriptor(&hd));
	LIB(cudnnSetTensorNdDescriptor(hd, CUDNN_DATA_FLOAT, 3, dims, stride));
	LIB(cudnnGetRNNWeightSpaceSize(dnn, rnn, &bytes));
	weights = to_device(random_values<float>(bytes / 4));
	LIB(cudnnGetRNNTempSpaceSizes(dnn, rnn, CUDNN_FWD_MODE_INFERENCE, xd, &work, &reserve));
	CHECK(cudaMalloc(&buf, work + 16));
	LIB(cudnnRNNForward(dnn, rnn, CUDNN_FWD_MODE_INFERENCE, dl, xd, dx, yd, dy, hd, dh, hy, hd, dc, cy,
			    bytes, weights, work, buf, 0, NULL));
	got = results(dy, y.size());
	last = results(hy, h.size());
	gates g(rnn, mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1, weights, bytes);
	for (int b = 0; b < batch; b++) {
		std::vector<double> state(&h[b * hidden], &h[(b + 1) * hidden]);
		std::vector<double> cell(&c[b * hidden], &c[(b + 1) * hidden]);

		for (int t = 0; t < steps; t++) {
			const float *at = &x[(t * batch + b) * in];

			rnn_step(mode, g, std::vector<double>(at, at + in), state, cell);
			for (int u = 0; u < hidden; u++)
				near_enough("recurrent", (t * batch + b) * hidden + u,
					    got[(t * batch + b) * hidden + u], state[u],
					    (t + 1) * (in + hidden) * 0x1p-22);
		}
		for (int u = 0; u < hidden; u++)
			near_enough("last state", b * hidden + u, last[b * hidden + u], state[u],
				    steps * (in + hidden) * 0x1p-22);
	}
	for (float *p : { dx, dh, dc, dy, hy, cy, weights })
		CHECK(cudaFree(p));
	CHECK(cudaFree(dl));
	CHECK(cudaFree(buf));
	LIB(cudnnDestroyTensorDescriptor(hd));
	LIB(cudnnDestroyRNNDataDescriptor(xd));
	LIB(cudnnDestroyRNNDataDescriptor(yd));
	LIB(cudnnDestroyRNNDescriptor(rnn));
	LIB(cudnnDestroyDropoutDescriptor(drop));
}

int main(int argc, char **argv)
{
	static const conv convs[] = {
		/* n  c   h   w   k  r  s pad stride dilation groups nhwc */
		{ 2, 8, 12, 12, 8, 3, 3, 1, 1, 1, 1, false },
		{ 1, 3, 17, 13, 5, 5, 5, 2, 2, 1, 1, false },
		{ 2, 16, 9, 9, 24, 1, 1, 0, 1, 1, 1, false },
		{ 1, 6, 14, 14, 4, 3, 3, 2, 1, 2, 1, false },
		{ 2, 8, 10, 10, 8, 3, 3, 1, 1, 1, 4, false },
	};

	LIB(cudnnCreate(&dnn));
	pooling<float>(CUDNN_POOLING_MAX, 3, 1, 2, false);
	softmax<float>(CUDNN_SOFTMAX_ACCURATE, 20);
	convolve<float>(convs[0], 1, false);
	if (!lib_arg(argc, argv, "fast")) {
		pooling<float>(CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING, 2, 0, 2, false);
		pooling<__half>(CUDNN_POOLING_MAX, 2, 0, 2, true);
		pooling<__half>(CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING, 3, 1, 1, false);
		activations<float>();
		activations<__half>();
		softmax<float>(CUDNN_SOFTMAX_LOG, 33);
		softmax<__half>(CUDNN_SOFTMAX_ACCURATE, 64);
		batch_norm<float>(4, 6, 5, 7, false);
		batch_norm<__half>(4, 8, 6, 6, true);
		add_and_reduce();
		recurrent(CUDNN_RNN_TANH, 4, 3, 10, 12);
		recurrent(CUDNN_LSTM, 5, 2, 12, 16);
		recurrent(CUDNN_GRU, 3, 4, 9, 16);
		for (const conv &v : convs)
			convolve<float>(v, 99, true);
		convolve<__half>({ 2, 16, 10, 10, 16, 3, 3, 1, 1, 1, 1, true }, 99, true);
		convolve<__nv_bfloat16>({ 1, 16, 8, 8, 32, 3, 3, 1, 1, 1, 1, true }, 99, true);
	}
	LIB(cudnnDestroy(dnn));
	return job_passed("cudnn");
}
