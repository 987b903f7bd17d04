# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# shm.sh - sourced by tests: what a job shares in /dev/shm, which other jobs use, too.

# shm_of PID: the inodes there that a process, or one below it, has mapped
shm_of()
{
	local p
	sed -n 's|.* \([0-9]\+\) \+/dev/shm/.*|\1|p' "/proc/$1/maps" 2>/dev/null
	for p in $(pgrep -P "$1"); do shm_of "$p"; done
}

# shm_remove INODE...: their names, as a restart of the machine would. Tells of links that CRIU made.
shm_remove()
{
	local inode
	for inode; do
		find /dev/shm -maxdepth 1 -inum "$inode" -name 'link_remap*' -printf '%p is left\n'
		find /dev/shm -maxdepth 1 -inum "$inode" -delete
	done
}
