# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# walk.sh - sourced by tests that walk through programs on the soft device as an H100

b=${SINGVGPU_BUILD:-build}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export SINGVGPU_SOFT_PROFILE=h100 SINGVGPU_SOFT_CACHE=$dir/cache SINGVGPU_LOG=1
unset CUDA_FORCE_PTX_JIT CUDA_VISIBLE_DEVICES
point=0 failed=0

# result NAME TEXT: passed if there is no text
result()
{
	point=$((point + 1))
	if [ -z "$2" ]; then
		echo "ok $point - $1"
	else
		failed=1
		echo "not ok $point - $1"
		sed 's/^/#   /' <<<"$2" | cut -c1-300 | head -20
	fi
}

# direct PROGRAM [ARG...]; proxied PROGRAM [ARG...]: output in $dir/direct and $dir/proxied, messages
# in direct.log and proxied.log, calls of the driver in direct.trace and proxied.trace; those that the
# program itself makes, without the ones of the export tables, in direct.calls
direct()
{
	rm -f "$dir/direct.trace" "$dir/direct.calls"
	SINGVGPU_SOFT_TRACE=$dir/direct.trace TRACE_FILE=$dir/direct.calls \
		TRACE_DRIVER=$PWD/$b/uproxy/softgpu/direct/libcuda.so.1 \
		LD_PRELOAD=$PWD/$b/selftests/gpu/trace/libcuda.so.1 \
		timeout -k 5 "${WALK_LIMIT:-120}" "$@" >"$dir/direct" 2>"$dir/direct.log" </dev/null
}
proxied()
{
	rm -f "$dir/proxied.trace"
	SINGVGPU_SOFT_TRACE=$dir/proxied.trace timeout -k 5 "${WALK_LIMIT:-120}" "$b/tools/singvgpu" run \
		-- "$@" >"$dir/proxied" 2>"$dir/proxied.log" </dev/null
}

# Calls of the driver that failed, but for: questions about what there may not be, the search for the
# largest cluster, work that has not completed, tables of NVIDIA's own tools, and memory that cannot
# be had, which the walk of PyTorch asks for.
failures()
{
	awk '$4 != 0 && $2 " " $4 !~ /^(cuDeviceGetAttribute|cu(Kernel|Func)GetParamInfo|cuCtxGetLimit) 1$/ &&
		$2 " " $4 !~ /^(cuOccupancyMaxActiveClusters 912|cu(Stream|Event)Query 600)$/ &&
		$2 " " $4 !~ /^(cuDeviceGetLuid 801|cuGetExportTable 500|cuCtxGetDevice_v2 201|cuMemAlloc_v2 2)$/' "$1"
}

launches()
{
	awk '$2 ~ /^cuLaunchKernel/ { sub(/^[^,]*= 0 /, ""); print }' "$1"
}

kernels()
{
	sed -n 's/^softcuda: recorded: //p' "$1"
}

# walk direct|proxied PROGRAM [ARG...]: nothing if it passes and no call of it fails; else what is wrong
walk()
{
	local how=$1
	if ! "$@" || ! grep -q '^PASS' "$dir/$how"; then
		echo "$how: it failed"
		cat "$dir/$how" "$dir/$how.log"
		return 1
	fi
	grep -q '^1 cuInit = 0$' "$dir/$how.trace" || echo "$how: the trace has no cuInit"
	failures "$dir/$how.trace" | sort | uniq -c | sed "s/^/$how: a call has failed: /"
	launches "$dir/$how.trace" >"$dir/$how.launches"
	kernels "$dir/$how.log" >"$dir/$how.kernels"
	[ -s "$dir/$how.kernels" ] || echo "$how: no kernel was launched"
	grep -E '^singvgpu\[[0-9]+\]: .* is not supported' "$dir/$how.log"
}

# sequence: the calls in direct.calls and their results, in order, equal ones counted
sequence()
{
	awk '{ print $2, $4 }' "$dir/direct.calls" | uniq -c | awk '{ print $1, $2, $3 }'
}

# kinds: the different calls in direct.calls with their results, in the order of their first use
kinds()
{
	awk '!seen[$2, $4]++ { print $2, $4 }' "$dir/direct.calls"
}

# kept sequence|kinds NAME VERSION: how they differ from those in calls/NAME, if VERSION made these.
# With KEEP=1 they are written anew.
kept()
{
	local file=selftests/hopper/calls/$2
	[ "${KEEP:-}" = 1 ] &&
		{ echo "# SPDX-License-Identifier: Apache-2.0"; echo "# $3"; "$1"; } >"$file"
	[ "$(sed -n 2p "$file")" != "# $3" ] ||
		diff <(tail -n +3 "$file") <("$1") | sed 's/^/calls differ from those kept: /'
}
