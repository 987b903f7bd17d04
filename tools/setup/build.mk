# SPDX-License-Identifier: Apache-2.0
# build.mk - what the build needs from Debian and NVIDIA, and what `make install` puts where.

.PHONY: setup browser cuda ssh torch tensorflow pypi trainers jupyter
setup:
	@tools/setup/setup

# build/cuda: a link to the toolkit of $CUDA_HOME, PATH or /usr/local/cuda, else NVIDIA's wheels,
# else Debian 13's packages.
cuda:
	@tools/setup/setup cuda

# build/torch: Debian 13's PyTorch, 2 GB to load; build/torch/python3 runs it.
torch:
	@tools/setup/setup torch

# build/tensorflow: PyPI's TensorFlow, 3 GB to load.
tensorflow:
	@tools/setup/setup tensorflow

# build/pypi: CuPy, numba-cuda, tinygrad, XGBoost and CatBoost of PyPI.
pypi:
	@tools/setup/setup pypi

# build/trainers: Transformers, PEFT, Accelerate, PyTorch Lightning, DeepSpeed and Megatron's core of PyPI for the
# Python of build/torch.
trainers:
	@tools/setup/setup trainers

# build/jupyter: ipykernel and jupyter-client of PyPI for the Python of build/torch.
jupyter:
	@tools/setup/setup jupyter

# build/ssh: OpenSSH, for the tests that need a server.
ssh:
	@tools/setup/setup ssh

# Chromium, for the test that looks at the pages of `singvgpu report`.
browser:
	@tools/setup/setup browser

$(KSELFTEST_H):
	tools/setup/setup linux-source

# Fragments add what they install: programs, libraries and manual pages (NAME.SECTION).
PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: install
install: all
	@tools/setup/install '$(DESTDIR)' '$(PREFIX)' \
		'$(INSTALL_BIN)' '$(INSTALL_LIB)' '$(INSTALL_MAN)'
