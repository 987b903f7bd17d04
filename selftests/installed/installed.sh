# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# installed.sh - sourced by the tests of an installed singvgpu, after tools.sh: installs one, and carries a
# training through a checkpoint with it.

# install_in FOLDER PREFIX: what is built, as `make install` does it
install_in()
{
	MAKEFLAGS='' make -s -o all install DESTDIR="$1" PREFIX="$2" B="${SINGVGPU_BUILD:-build}" 2>&1 |
		grep -v '^install: '
}

# results FILE: what a training has printed of itself
results()
{
	grep '^step\|^checksum\|^PASS' "$1"
}

# carried TOOL COMMAND...: nothing if the training, saved after some steps, ended and restored, goes on with
# the same bits; else what is wrong. The command gets the pause after each step as its last argument.
carried()
{
	local singvgpu=$1 out=$tmp/carried.out job
	shift
	(cd / && timeout -k 5 600 "$singvgpu" run -- "$@" 0) >"$tmp/whole" 2>&1 </dev/null
	: >"$out"
	(cd / && exec "$singvgpu" run -- "$@" 0.3) >"$out" 2>&1 </dev/null &
	job=$!
	until grep -q '^step 8 ' "$out" || has_ended "$job"; do nap 0.1; done
	strays
	"$singvgpu" checkpoint --quiet "$job" >"$tmp/save.out" 2>&1 || cat "$tmp/save.out" "$out"
	wait "$job"
	! grep -q '^PASS' "$out" || echo "had come to its end"
	timeout -k 5 300 "$singvgpu" restore --quiet "latest:$job" >"$tmp/back.out" 2>&1 || cat "$tmp/back.out"
	grep -q '^PASS' "$tmp/whole" || cat "$tmp/whole"
	diff <(results "$tmp/whole") <(results "$out")
}

# strays: what marked processes have mapped of the tree, but for the frameworks that it has unpacked
strays()
{
	local pid
	while read -r pid _; do
		sed -n "s|.* \\($b/.*\\)|\\1|p" "/proc/$pid/maps" 2>/dev/null
	done < <(marked) | sort -u | grep -v "^$b/\\(torch\\|frameworks\\|jupyter\\|softgpu-cache\\)/" |
		sed 's/^/mapped from the tree: /'
}
