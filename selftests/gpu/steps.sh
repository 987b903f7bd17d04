# SPDX-License-Identifier: Apache-2.0
# steps.sh - what the table `steps` calls; sourced by check-gpu, which exports kit, work, store,
# programs, driver, python, libraries and PLAIN. $work/complained is the step's stderr.
#
# A step's last line is its summary. Its status: 0, 4 for nothing to test, else it failed.

proxied()
{
	LD_LIBRARY_PATH=$libraries "$kit/tools/singvgpu" run --driver "$driver" -- "$@"
}

plainly()
{
	local -a with
	read -ra with <<<"$PLAIN"
	LD_LIBRARY_PATH=$libraries "${with[@]}" "$@"
}

probe()	# NAME [ARG]...: asks the driver
{
	"$programs/gpu/probe" "$driver" "$@"
}

probe_proxied()
{
	proxied "$programs/gpu/probe" libcuda.so.1 "$@"
}

ms_per_step()	# FILE
{
	sed -n 's/.*[ ;]\([0-9.]*\) ms\/step.*/\1/p' "$1" | tail -n 1
}

# both COMMAND...: without singvgpu and with it. Checksums must agree; programs that name their
# ms/step have the two compared.
both()
{
	local a b p s text
	plainly "$@" >"$work/plain"; a=$?
	cat "$work/plain"
	[ $a -ne 4 ] || return 4
	echo "-- with singvgpu:"
	proxied "$@" >"$work/proxied"; b=$?
	cat "$work/proxied"
	if [ $a -ne 0 ]; then
		echo "fails without singvgpu ($a), with it: $b: $(tail -n 1 "$work/complained")"
		return 4
	fi
	text="plain $a, singvgpu $b"
	p=$(sed -n 's/^checksum //p' "$work/plain") s=$(sed -n 's/^checksum //p' "$work/proxied")
	[ "$p" = "$s" ] || { echo "$text, checksums $p and $s"; return 1; }
	[ -z "$p" ] || text+=", same bits"
	p=$(ms_per_step "$work/plain") s=$(ms_per_step "$work/proxied")
	[ -z "$s" ] || text+=$(awk -v p="$p" -v s="$s" \
		'BEGIN { printf ", ms/step %s and %s, ratio %.3f", p, s, p ? s / p : 0 }')
	if [ -z "$s" ]; then
		p=$(tail -n 1 "$work/plain") s=$(tail -n 1 "$work/proxied")
		text+=": $p"
		[ "$p" = "$s" ] || text+=" -- $s"
	fi
	echo "$text"
	return $b
}

# figures PROGRAM: a bench's lines "NAME FIGURE", without singvgpu and with it
figures()
{
	both "$programs/bench/$1" >"$work/both" || return
	join <(sort "$work/plain") <(sort "$work/proxied") >"$work/joined"
	cat "$work/joined"
	[ -s "$work/joined" ] || return 1
	echo "plain/singvgpu: $(awk '{ printf "%s %s/%s ", $1, $2, $3 }' "$work/joined")"
}

inventory()
{
	local c
	cat /proc/driver/nvidia/version 2>/dev/null
	timeout 5 nvidia-smi 2>&1
	timeout 5 nvidia-smi -q 2>/dev/null | grep -iE 'persistence|mig mode|compute mode|addressing|bar1|link' -A 2
	ls -l /dev/nvidia* 2>/dev/null
	ldconfig -p | grep -E 'libcuda|libnvidia|libcudart|libcublas|libcudnn|libnccl|liburing|libzstd'
	echo "NVIDIA's libraries: $libraries"
	grep -E '^(MemTotal|MemAvailable|Hugepagesize|Shmem)' /proc/meminfo
	grep -m 1 'model name' /proc/cpuinfo
	cat /proc/cmdline /proc/sys/kernel/{io_uring_disabled,yama/ptrace_scope} /proc/self/limits 2>/dev/null
	{ zcat /proc/config.gz || gzip -dc /proc/config.gz || cat "/boot/config-$(uname -r)"; } 2>/dev/null |
		grep -E 'CHECKPOINT_RESTORE|IO_URING|USERFAULT|UNIX_DIAG|NAMESPACES|_NS=|MEMFD|MODULES=|IOMMU'
	[ ! -e /dev/nvidia0 ] || [ -e /proc/driver/nvidia/version ] || echo "no /proc/driver/nvidia"
	if [ -n "$python" ]; then
		"$python" - <<'PY'
import importlib.metadata as m, sys
print("python", sys.version.split()[0], *sorted(
    f"{d.metadata['Name']} {d.version}" for d in m.distributions()
    if (d.metadata["Name"] or "").lower().startswith(("torch", "triton", "jax", "cupy", "nvidia", "numpy"))))
PY
	fi
	df -h /dev/shm / 2>/dev/null
	echo "$(nproc) processors, $(sed -n 's/MemTotal: *//p' /proc/meminfo), $(uname -r), driver" \
		"$(sed -n 's/.*  \([0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1)"
}

doctor()
{
	local status
	"$kit/tools/singvgpu" doctor >"$work/doctor"; status=$?
	cat "$work/doctor"
	echo "status $status;" $(grep -E '^(warn|missing) ' "$work/doctor" | cut -c 1-80 | tr '\n' ';')
}

criu_check()
{
	local status
	"$kit/criu/criu" check --all >"$work/criu" 2>&1; status=$?
	cat "$work/criu"
	echo "criu $("$kit/criu/criu" --version | sed -n 's/Version: //p'), check --all: status $status:" \
		"$(tail -n 1 "$work/criu")"
}

# Five places and three lengths, in ten processes: how many honour each before and with a context.
windows()
{
	local base len list= turn
	for base in 0x200000000000 0x210000000000 0x300000000000 0x400000000000 0x100000000000; do
		for len in 2T 512G 128G; do list+=${list:+,}$base:$len; done
	done
	for turn in 1 2 3 4 5 6 7 8 9 10; do
		probe windows $list >>"$work/windows" || return
	done
	awk '{ n[$1]++; a[$1] += $2; b[$1] += $3 }
		END { for (w in n) printf "%s %d %d of %d\n", w, a[w], b[w], n[w] }' "$work/windows" | sort
	awk '{ n++; a += $2; b += $3; if ($1 ~ /^0x200000000000:2048G/) { f += $2; g += $3 } }
		END { printf "honoured: %d of %d, with a context %d; the default window %d, %d\n",
			a, n, b, f, g }' "$work/windows"
}

# Addresses in three processes with address randomisation and in three without.
variables()
{
	local how turn
	for how in random fixed; do
		for turn in 1 2 3; do probe variables $how >>"$work/$how" || return; done
		cat "$work/$how"
	done
	for how in random fixed; do
		echo "$how: $(sort -u "$work/$how" | wc -l) places; of variables" \
			"$(cut -d ' ' -f 1-5 "$work/$how" | sort -u | wc -l)"
	done | tr '\n' ' '
	echo
}

frameworks()	# NAME [ARG]...: a part of frameworks.py with and without singvgpu
{
	[ -n "$python" ] || { echo "no python3"; return 4; }
	both "$python" "$kit/frameworks.py" "$@"
}

# traced NAME COMMAND...: its calls of the driver go to trace-NAME.gz, to be compared with
# selftests/hopper/calls.
traced()
{
	local name=$1 status
	shift
	rm -f "$work/trace"
	TRACE_DRIVER=$driver TRACE_FILE=$work/trace LD_LIBRARY_PATH=$libraries \
		LD_PRELOAD=$programs/gpu/trace/libcuda.so.1 "$@"; status=$?
	[ $status -ne 127 ] || { tail -n 1 "$work/complained"; return 4; }
	[ $status -ne 4 ] || return 4
	[ -s "$work/trace" ] || return 1
	gzip <"$work/trace" >"$out/trace-$name.gz"
	echo "status $status, $(wc -l <"$work/trace") calls"
	return $status
}

traced_torch()
{
	[ -n "$python" ] || { echo "no python3"; return 4; }
	traced torch "$python" "$kit/frameworks.py" ladder
}

# Two ranks on one device: skipped until the kit has a program of several ranks.
two_ranks()
{
	echo "the kit has no program of several ranks"
	return 4
}

losses()	# FILE: what must be the same bits, without the times
{
	grep -E '^(step|loss|tensor|checksum) ' "$1" | sed 's/;* *[0-9.]* ms.*//'
}

# saved PATTERN COMMAND...: whole; and saved when its output has PATTERN, ended, restored.
saved()
{
	local pattern=$1 job id= a b began i
	shift
	export SINGVGPU_STORE=$store LD_LIBRARY_PATH=$libraries
	local -a run=("$kit/tools/singvgpu" run --driver "$driver" --)
	"${run[@]}" "$@" >"$work/whole" || { a=$?; cat "$work/whole"; return $a; }
	: >"$work/part"
	"${run[@]}" "$@" >"$work/part" &
	job=$!
	while kill -0 $job 2>/dev/null && ! grep -q "$pattern" "$work/part"; do sleep 0.05; done
	id=$("$kit/tools/singvgpu" ps | awk -v pid=$job '$1 == pid { print $1 }')
	began=$(date +%s%N)
	"$kit/tools/singvgpu" checkpoint --criu "$kit/criu/criu" "${id:-none}"; a=$?
	i=$(($(date +%s%N) - began))
	wait $job
	began=$(date +%s%N)
	"$kit/tools/singvgpu" restore --criu "$kit/criu/criu" --driver "$driver" latest; b=$?
	began=$(($(date +%s%N) - began))
	rm -rf "${SINGVGPU_STORE:?}"/*
	cat "$work/part"
	if [ $a -eq 0 ] && [ $b -eq 0 ] && [ -n "$(losses "$work/whole")" ] &&
			[ "$(losses "$work/whole")" = "$(losses "$work/part")" ]; then
		echo "saved in $((i / 1000000)) ms, restored and ended in $((began / 1000000)) ms: same bits"
	else
		# The first step, and the first tensor: the lines of both have its name before the bits.
		echo "saved ($a), restored ($b), the same bits: no; first" \
			"$(awk 'NR == FNR { whole[++n] = $0; next }
				$0 != whole[FNR] { split(whole[FNR], w); if (!seen[$1]++)
					printf "%s %s: %s, not %s; ", $1, $2, $NF, w[length(w)] }
				END { if (FNR < n) print "the end is missing" }' \
				<(losses "$work/whole") <(losses "$work/part"))"
		return 1
	fi
}

saved_torch()	# GB
{
	[ -n "$python" ] || { echo "no python3"; return 4; }
	saved '^loss 20 ' "$python" "$kit/frameworks.py" train "$1"
}

every_program()
{
	local p
	for p in "$programs"/jobs/* "$programs"/libs/*; do
		case ${p##*/} in
		*.so | gpt) ;;	# gpt is in the table
		*) [ ! -x "$p" ] || echo "$p" ;;
		esac
	done
}

export -f proxied plainly probe probe_proxied ms_per_step both figures inventory doctor criu_check \
	windows variables two_ranks frameworks traced traced_torch losses saved saved_torch
